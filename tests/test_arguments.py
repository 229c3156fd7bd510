"""Wrong arguments are refused before anything is imported that takes seconds."""

import json
import subprocess
import sys

import workbench as wb
from workbench import plugin

RUN = str(wb.sample_run())
#: Command lines, and what their last line says.
WRONG = {
    "run nope.pte": "nope.pte: no such file -> workbench export MODEL makes one",
    "run nosuch": "unknown model 'nosuch'",
    "sme2 nosuch": "unknown model 'nosuch'",
    "sme2 nope.pte": "nope.pte: no such file",
    "export nosuch": "unknown model 'nosuch'",
    "export toy_cnn --dtype int3": "did you mean 'int8'?",
    "export toy_cnn --backend x": "unknown backend 'x'",
    "export toy_cnn --rewrite nosuch": "unknown rewrite 'nosuch'",
    "export toy_cnn --inputs none.npy": "none.npy: no such file",
    "export toy_cnn --state-dict none.pt": "none.pt: no such file",
    "export toy_cnn --recipe none.yaml": "none.yaml: No such file",
    "profile nosuch": "unknown model 'nosuch'",
    "profile toy_cnn --dtype int3": "did you mean 'int8'?",
    "profile toy_cnn --target nosuch": "--target: unknown target 'nosuch'",
    "profile toy_cnn --against none.pte": "none.pte: no such file",
    "profile toy_cnn --toggle nosuch": "unknown toggle 'nosuch'",
    "profile toy_cnn --sweep x": "--sweep: 'x' is not NAME=SIZES",
    "profile toy_cnn --phase x": "--phase: 'x' is not NAME=INPUTS",
    "profile toy_cnn --measure ops=none.so": "none.so: no such library of operators",
    "profile toy_cnn --categories nosuch": "unknown categories 'nosuch'",
    "profile toy_cnn --categories none.yaml": "none.yaml: no such file",
    "trace nothing.etdump": "nothing.etdump: no such file or folder",
    "trace nothing --to csv": "nothing: no such file or folder",
    f"trace {RUN} --to nosuch": "--to: unknown format 'nosuch'",
    "kernels nothing": "nothing: no such file or folder",
    "findings nothing": "nothing: no such file or folder",
    f"findings {RUN} --experiment nosuch": "unknown experiment 'nosuch'",
    f"findings {RUN} --baseline nosuch": "--baseline: unknown experiment 'nosuch'",
    f"findings {RUN} --threads 9": "9",
    f"findings {RUN} --check all --model nosuch": "unknown model 'nosuch'",
    "compare nothing": "nothing: no such file or folder",
    f"compare {RUN}:nosuch {RUN}": "unknown experiment 'nosuch'",
    f"compare {RUN} --across nosuch": "--across: unknown axis 'nosuch'",
    f"compare {RUN} --by nosuch": "--by: unknown part 'nosuch'",
    f"compare {RUN} --baseline none.json": "none.json: no such file or folder",
    "report nothing": "nothing: no such file or folder",
    f"report {RUN} --notebook none.ipynb": "none.ipynb: no such file or folder",
    "analyze nothing": "nothing: no such file or folder",
    f"report {RUN} --baseline nosuch": "--baseline: unknown experiment 'nosuch'",
    f"analyze {RUN} --baseline nosuch": "--baseline: unknown experiment 'nosuch'",
    f"analyze {RUN} --categories nosuch": "unknown categories 'nosuch'",
    f"analyze {RUN} --etrecord none.bin": "none.bin: no such file or folder",
    # Of plug-ins, which may be gone.
    "batch nothing.yaml": "nothing.yaml: no such file or folder",
    "history --figure it.gif": "unknown format 'gif'",
    "history nothing": "nothing: no such file or folder",
    "report .": ".: holds no manifest.json and no ETDump: not a run folder",
    "analyze .": "not a run folder",
    "findings .": "not a run folder",
    "compare . .": "not a run folder",
    "optimize nosuch": "unknown model 'nosuch'",
    "optimize toy_cnn --target nosuch": "--target: unknown target 'nosuch'",
}
#: Runs each line in one process; prints the exit code, what is said, and what is imported.
PROGRAM = """
import contextlib, io, json, shlex, sys
from workbench.cli import main
answers = {}
for line in json.loads(sys.argv[1]):
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            main(shlex.split(line))
    except SystemExit as end:
        heavy = {"pandas", "scipy", "torch", "matplotlib", "IPython"} & {*sys.modules}
        answers[line] = [end.code, said.getvalue(), sorted(heavy)]
print(json.dumps(answers))
"""


def has_command(line):
    """Whether the command of a line is there; some are of plug-ins."""
    from workbench.cli import workbench

    there = {*workbench.commands, *plugin.list_names("commands")}
    return line.split()[0] in there


def test_wrong_arguments_are_refused_before_pandas_and_torch_are_imported(tmp_path):
    lines = list(filter(has_command, WRONG))
    words = [sys.executable, "-c", PROGRAM, json.dumps(lines)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout.splitlines()[-1])
    assert list(answers) == lines
    for line, (code, said, heavy) in answers.items():
        assert code in (1, 2), line
        assert WRONG[line] in said and said.count("\n") == 1, (line, said)
        assert not heavy, line


def test_an_absent_attribute_imports_nothing():
    code = (
        "import sys, workbench as wb\n"
        f"run = wb.open_run({RUN!r})\n"
        "before = {*sys.modules}\n"
        "assert not hasattr(run, 'typo') and not hasattr(run.subject, 'typo')\n"
        "new = {name.partition('.')[0] for name in {*sys.modules} - before}\n"
        "print(sorted(new - {'workbench'}), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "[] False\n", done.stdout + done.stderr
