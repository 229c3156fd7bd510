"""Custom runners on another machine behind a shell: words, files, leftovers, answers."""

import json
import os
import time
from pathlib import Path

import pytest
from devices import COPY_TRACE, TRACE, pretend_clusters

import workbench as wb

WORDS = [
    *("a  b", "it's", "$HOME", "`id`", "x;y&z|*?", 'say "no"', "\\", "ü\n\t", "-", "~", "#", "a=b"),
    *("!", "{1,2}", "<x >y", "\x7f\x1b"),
]


@pytest.fixture
def config(tmp_path, monkeypatch):
    """A config with two runners that copy a trace; each notes the words that it gets."""
    monkeypatch.chdir(tmp_path)
    script = f'#!/bin/sh\nprintf "%s\\0" "$@" > {tmp_path}/words\n{COPY_TRACE}\n'
    (tmp_path / "it's a $model.pte").write_bytes(b"program")
    experiments = []
    for side in ("off", "on"):
        runner = tmp_path / f"my {side} runner"
        runner.write_text(f"{script}# {side}\n")
        runner.chmod(0o755)
        experiments.append(
            {"name": side, "runner_path": str(runner), "runs": 10, "warmup": 0,
             "cpu_affinity": "1", "extra_args": WORDS}
        )  # fmt: skip
    content = {"model": "it's a $model.pte", "experiments": experiments, "target": "ssh:board"}
    (tmp_path / "x.json").write_text(json.dumps(content))
    return tmp_path / "x.json"


@pytest.mark.whole
def test_every_word_and_file_arrives_unchanged(board, config, tmp_path):
    run = wb.run_config(config, root=tmp_path / "out")
    assert run.record.state == "complete"
    words = (tmp_path / "words").read_bytes().decode().split("\0")[:-1]
    assert words[-len(WORDS) :] == WORDS
    assert words[0] == "--model_path"
    there = Path(words[1])
    assert there.parent == board.base / "files"
    assert there.read_bytes() == b"program"
    for session in run.record.sessions:
        assert (run.path / session.etdump).read_bytes() == TRACE.read_bytes()
    assert [path.name for path in board.base.iterdir()] == ["files"]
    files = {path: path.stat().st_mtime_ns for path in there.parent.iterdir()}
    assert len(files) == 3

    there.write_bytes(b"damaged")
    wb.run_config(config, root=tmp_path / "again")
    assert there.read_bytes() == b"program", "a damaged file is copied again"
    del files[there]
    assert files == {path: path.stat().st_mtime_ns for path in files}, "the others are not"


def test_run_folders_that_a_killed_run_left_days_ago_are_deleted(board, config, tmp_path):
    for name, days in (("run-old", 4), ("run-new", 1)):
        (board.base / name / "inside").mkdir(parents=True)
        then = time.time() - days * 24 * 3600
        os.utime(board.base / name, (then, then))
    (tmp_path / "my off runner").write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(wb.WorkbenchError, match="ended with code 3"):
        wb.run_config(config, root=tmp_path / "out")
    assert board.runs == ["run-new"]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("kill -SEGV $$", "killed by signal 11|ended with code 139"),
        ("exit 0", "wrote no ETDump.*No such file"),
    ],
)
def test_a_runner_that_fails_there_says_why(board, config, tmp_path, body, says):
    (tmp_path / "my off runner").write_text(f"#!/bin/sh\n{body}\n")
    with pytest.raises(wb.WorkbenchError, match=says):
        wb.run_config(config, root=tmp_path / "out")
    assert board.runs == []


def test_a_command_that_hangs_or_fails_is_one_line(board, config, tmp_path, short_waits):
    board.tools.write("sha256sum", "echo 'disk full' >&2; exit 1")
    with pytest.raises(wb.WorkbenchError, match=r"^ssh:board: disk full -> check its connection"):
        wb.run_config(config, root=tmp_path / "out")
    board.tools.write("sha256sum", "exec sleep 30")
    with pytest.raises(wb.WorkbenchError, match=r"^ssh:board: no answer in "):
        wb.run_config(config, root=tmp_path / "out")


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ("yes", "an answer of more than 4 MB"),
        ("yes >&2", "an answer of more than 4 MB"),
        ("exit 0", "`echo ~` prints ''"),
        ("sh -c \"$*\" | sed '/^@/d'", "does not answer as a shell does: no machine"),
        ("sh -c \"$*\" | sed '/^@machine/{n; s|.*|../../x|}'", r"prints '\.\./\.\./x'"),
    ],
)
def test_answers_of_a_machine_are_bounded_and_refused(board, config, tmp_path, answer, says):
    script = (board.tools.folder / "ssh").read_text().replace('exec sh -c "$*"', answer)
    board.tools.write("ssh", script, log=False)
    with pytest.raises(wb.WorkbenchError, match=f"^ssh:board: .*{says}"):
        wb.run_config(config, root=tmp_path / "out")


@pytest.mark.whole
def test_facts_that_no_machine_has_are_unknown(board, config, tmp_path):
    edits = f"s/^Cpus_allowed_list.*/Cpus_allowed_list: 0-30000000/; s/^MemTotal: */&{'9' * 6000}/"
    script = (board.tools.folder / "ssh").read_text()
    script = script.replace('exec sh -c "$*"', f"sh -c \"$*\" | sed '{edits}'")
    board.tools.write("ssh", script, log=False)
    host = wb.run_config(config, root=tmp_path / "out").record.host
    assert host["memory_gb"] is None
    assert host["cores_usable"] == host["cores"]


@pytest.mark.whole
@pytest.mark.parametrize(
    ("khz", "says"),
    [
        ([1_800_000] * 4 + [2_400_000] * 3 + [2_800_000],
         "1 x 2800 MHz, 3 x 2400 MHz, 4 x 1800 MHz"),
        (["9" * 5000, "x", "-1"], ""),
        (range(1000, 2_000_000, 1000), "1 x 1999 MHz, 1 x 1998 MHz, "),
    ],
    ids=["clusters", "no numbers", "many"],
)  # fmt: skip
def test_the_clusters_of_a_device_are_stated_and_bounded(board, config, tmp_path, khz, says):
    pretend_clusters(board, khz)
    stated = wb.run_config(config, root=tmp_path / "out").record.host["clusters"]
    assert stated.startswith(says) if says else stated == ""
    assert len(stated) <= 200
