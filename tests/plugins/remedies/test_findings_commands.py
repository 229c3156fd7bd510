"""What findings propose runs: commands are executed, with the options of the run, code is code."""

import ast
import re
import shlex
from pathlib import Path

import pytest
from command_line import COMMANDS
from exported_runs import measure_briefly

import workbench as wb

FILE = Path(__file__).parents[2] / "hinted_models.py"
#: Networks, and the options that each is exported with.
CASES = {
    "Pooled": {"dtype": "int8", "inputs": ("random:3",)},
    "Attention": {},
    "Norms": {"sizes": (("batch", 3),)},
    "Doubles": {},
    "Loop": {},
    "Fixed": {"dtype": "fp16"},
    "Filters": {"inputs": ("random:4",)},
    "Layouts": {"dtype": "fp16"},
    "Quantised": {"dtype": "int8"},
    "Recurrent": {"dtype": "int8"},
    "Unsupported": {},
    "Lookup": {"dtype": "bf16"},
    "Joined": {"rewrite": ("mean",)},
}
pytestmark = [pytest.mark.cases, pytest.mark.timeout(900)]


def options_of(words):
    """The values of a command's options, without where it writes."""
    context = COMMANDS[words[0]].make_context(words[0], [*words[1:]])
    return {name: value for name, value in context.params.items() if name != "out"}


@pytest.mark.parametrize("name", CASES)
def test_what_findings_propose_runs(name, tmp_path, cli):
    options = dict(CASES[name])
    folder = measure_briefly(f"{FILE}:{name}", tmp_path, **options)
    run = wb.open_run(folder)
    findings, done = run.opportunities, set()
    assert len(findings), "a network of this list has findings"
    code, printed, err = cli("findings", folder)
    assert code == 0, err
    together = re.findall("^all rewrites: (.*)", printed, re.MULTILINE)
    rewrites = {each.remedy for each in findings if "--rewrite" in each.command}
    assert bool(together) == (len(rewrites) > 1)
    for finding in findings:
        if "// C++" not in finding.code:
            ast.parse(finding.code)
    for command in [*(each.command for each in findings if each.command), *together]:
        words = shlex.split(command, comments=True)
        if tuple(words) not in done:
            execute(words[1:], options, tmp_path / f"hint{len(done)}", cli)
        done.add(tuple(words))


def execute(words, options, out, cli):
    """Run a command; of `profile`, only the export: other tests measure."""
    verb, *rest = words
    params = options_of(words)
    if verb in ("export", "profile"):
        for option in ("inputs", "sizes"):
            assert not options.get(option) or params[option] == options[option], words
        verb, rest = "export", [*rest, "--out", out]
    elif verb == "findings":
        rest += ["--budget", "1"]
    code, _, err = cli(verb, *rest)
    assert code == 0, f"{' '.join(map(str, words))}: {err}"
    new = [each for each in params.get("rewrite", ()) if each not in options.get("rewrite", ())]
    if len(new) == 1 and new[0] != "all":
        (record,) = wb.read_exports(out)
        assert new[0] in record.rewrite, "it is found in the graph, so it changes the program"
