"""Files and commands on targets behind a shell, and the local machine."""

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from local_shell import LocalShell
from planned import make_plan, run_plan

from workbench import store
from workbench.errors import RunnerCrash, TargetError, UsageError
from workbench.options import MeasureOptions
from workbench.run.build import installed_compiler
from workbench.run.isa import read_isa
from workbench.run.runner import Runner, find_runner
from workbench.run.session import Session, open_session
from workbench.run.targets import open_target
from workbench.run.targets.host import HOST, run_there
from workbench.run.targets.remote import _owner
from workbench.workflow import run_config

NAMES = st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=30
)
BRIEF = MeasureOptions(runs=8, processes=1, cold_start=False, evidence=False)
needs_compiler = pytest.mark.skipif(installed_compiler() is None, reason="no C++ compiler")


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    # The folder there has a name that a careless command would trip over.
    base = tmp_path_factory.mktemp("device") / "it's $HOME; `rm`"
    with LocalShell(base) as target:
        yield target


@pytest.fixture
def runner(shell):
    """The native runner of this machine, as if the shell led to another one."""
    host = find_runner()
    folder = shell.push(Path(host.command[0]), executable=True)
    return Runner("native", tuple(shell.command([folder])), host.description, shell)


@given(words=st.lists(NAMES, max_size=5))
def test_every_word_of_a_command_arrives_unchanged(shell, words):
    done = run_there(shell, ["printf", r"%s\0", *words])
    expected = "".join(f"{word}\0" for word in words) if words else "\0"
    assert done.stdout == os.fsencode(expected)


@given(word=NAMES)
def test_words_after_a_command_arrive_unchanged(shell, word):
    command = [*shell.command(["printf", "%s"]), shell.quote(word)]
    assert subprocess.run(command, capture_output=True).stdout == os.fsencode(word)


def test_a_null_byte_is_refused(shell):
    with pytest.raises(UsageError, match="null byte"):
        shell.quote("a\0b")


@given(name=NAMES.filter(lambda n: "/" not in n and n not in (".", "..")), content=st.binary())
def test_files_of_any_name_are_copied_both_ways(shell, tmp_path_factory, name, content):
    folder = tmp_path_factory.mktemp("files")
    path = folder / name.encode()[:60].decode(errors="ignore")
    if path == folder:
        return
    path.write_bytes(content)
    there = shell.push(path)
    assert there.startswith(f"{shell.base}/files/")
    assert Path(there).read_bytes() == content
    placed = shell.place(path)
    assert placed.startswith(f"{shell.run_dir}/")
    assert placed != shell.place(path)
    shutil.copy(there, placed)
    path.unlink()
    shell.pull(placed, path)
    assert path.read_bytes() == content
    assert not Path(placed).exists()


def test_only_missing_and_damaged_files_are_copied(tmp_path):
    path, base = tmp_path / "model.pte", tmp_path / "device"
    path.write_bytes(b"program")
    with LocalShell(base) as target:
        there = Path(target.push(path))
    written = there.stat().st_mtime_ns
    with LocalShell(base) as target:
        assert target.push(path) == str(there)
        assert there.stat().st_mtime_ns == written
    there.write_bytes(b"damaged")
    with LocalShell(base) as target:
        target.push(path)
    assert there.read_bytes() == b"program"


def test_a_folder_of_programs_can_be_run(tmp_path):
    source = tmp_path / "bundle-1"
    source.mkdir()
    (source / "hello").write_text("#!/bin/sh\necho hello $1\n")
    with LocalShell(tmp_path / "device") as target:
        there = target.push_folder(source)
        assert run_there(target, [f"{there}/hello", "a  b"]).stdout == b"hello a b\n"


def test_run_folders_are_deleted_also_those_of_ended_processes(tmp_path):
    process = subprocess.Popen(["true"])
    process.wait()
    base = tmp_path / "device"
    dead = base / f"{_owner()}-{process.pid}-0123abcd"
    alive = base / f"{_owner()}-{os.getppid()}-0123abcd"
    others = base / f"run-1-2-{process.pid}-0123abcd"
    for folder in (dead, alive, others):
        folder.mkdir(parents=True)
    with LocalShell(base) as one, LocalShell(base) as two:
        assert Path(one.run_dir).is_dir()
        assert Path(two.run_dir).is_dir()
        assert not dead.exists()
    assert sorted(base.iterdir()) == sorted([base / "files", alive, others])


def test_a_failing_command_says_why(shell, tmp_path):
    with pytest.raises(TargetError, match=r"^shell: .*no-such-file"):
        shell.pull(f"{shell.run_dir}/no-such-file", tmp_path / "x")
    with pytest.raises(TargetError, match=r"no answer in 0.1 s"):
        shell.sh("sleep 5", timeout_s=0.1)


def test_a_target_describes_itself(shell):
    facts = shell.describe()
    assert facts["machine"] == os.uname().machine
    assert facts["cores"] >= 1
    assert facts["memory_gb"] > 0
    assert facts["cpu"]
    assert set(shell.cores()) <= set(os.sched_getaffinity(0))


@needs_compiler
def test_a_run_on_a_target(shell, runner, conv_pte, tmp_path):
    assert read_isa(runner.command) == read_isa(find_runner().command)
    pte = Path(shutil.copy(conv_pte, tmp_path / "it's a $model.pte"))
    plan = make_plan(pte, BRIEF, runner)
    run_dir = run_plan(plan, runner, tmp_path / "out")
    run = store.load_run(run_dir)
    assert run.state == "complete"
    assert run_dir.name.startswith("it_s_a_model-shell-20")
    assert all(a.agree for a in run.agreements)
    traced = [s for s in run.sessions if s.traced]
    assert traced
    for session in traced:
        assert (run_dir / session.etdump).stat().st_size > 0
    assert not list(Path(shell.run_dir).iterdir())


class Unplugged(LocalShell):
    """A shell that is cut off for good when told so."""

    plugged = True

    def shell(self, script):
        return super().shell(script if self.plugged else "echo 'device offline' >&2; exit 1")


@needs_compiler
@pytest.mark.slow
def test_a_device_lost_during_a_run_keeps_its_measurements(conv_pte, tmp_path, monkeypatch):
    target = Unplugged(tmp_path / "device")
    host = find_runner()
    binary = target.push(Path(host.command[0]), executable=True)
    runner = Runner("native", tuple(target.command([binary])), host.description, target)
    pte = Path(shutil.copy(conv_pte, tmp_path / "conv.pte"))
    plan = make_plan(pte, BRIEF, runner)
    real, calls = Session.run, iter(range(30))

    def run(session, count):
        if next(calls, None) is None:
            target.plugged = False
            os.killpg(session._process.pid, signal.SIGKILL)
        return real(session, count)

    with monkeypatch.context() as patch, pytest.raises(TargetError, match="connection lost"):
        patch.setattr(Session, "run", run)
        run_plan(plan, runner, tmp_path / "out")
    (run_dir,) = store.find_runs(tmp_path / "out")
    partial = store.load_run(run_dir)
    assert partial.state == "incomplete"
    assert any(s.batches for s in partial.sessions)
    target.close()
    left = [p for p in (tmp_path / "device").iterdir() if p.name != "files"]
    assert [str(p) for p in left] == [target.run_dir]

    target.plugged = True
    with Unplugged(tmp_path / "device") as again:
        assert not Path(target.run_dir).exists()
        runner = Runner("native", tuple(again.command([binary])), host.description, again)
        assert run_plan(plan, runner, tmp_path / "out") == run_dir
    assert store.load_run(run_dir).state == "complete"
    assert [p.name for p in (tmp_path / "device").iterdir()] == ["files"]


def test_a_crash_is_not_a_lost_device(shell):
    command = shell.command(["sh", "-c", "kill -SEGV $$"])
    with pytest.raises(RunnerCrash, match="killed by SIGSEGV"):
        open_session(command, timeout_s=10, target=shell)


@needs_compiler
def test_custom_runners_run_on_a_target(conv_pte, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "workbench.run.targets.open_target",
        lambda name, power: LocalShell(tmp_path / "a $device"),
    )
    (runner,) = find_runner().command
    for name, level in (("slow", "--isa=native"), ("fast", "--isa=native")):
        script = tmp_path / f"my {name} runner"
        script.write_text(f'#!/bin/sh\nexec "{runner}" "$@" {level} >/dev/null\n')
        script.chmod(0o755)
    experiments = [
        {"name": name, "runner_path": str(tmp_path / f"my {name} runner"), "runs": 10,
         "cpu_affinity": "1"}
        for name in ("slow", "fast")
    ]  # fmt: skip
    config = {"model": str(conv_pte), "experiments": experiments, "target": "shell"}
    (tmp_path / "kit.json").write_text(json.dumps(config))
    run_dir = run_config(tmp_path / "kit.json", root=tmp_path / "out").path
    run = store.load_run(run_dir)
    assert run.state == "complete"
    assert run.platform == "shell"
    assert all((run_dir / s.etdump).stat().st_size for s in run.sessions)
    assert [p.name for p in (tmp_path / "a $device").iterdir()] == ["files"]
    assert len(list((tmp_path / "a $device" / "files").iterdir())) == 3


def test_the_host_is_the_identity(tmp_path):
    with open_target("host") as target:
        assert target is HOST
        assert not target.emulated
        assert target.command(["a b", "c"]) == ["a b", "c"]
        assert target.push(tmp_path / "x y") == f"{tmp_path}/x y"
        assert target.place(tmp_path / "x y") == f"{tmp_path}/x y"
        assert target.describe()["cpu"]
        assert run_there(target, ["echo", "a  b"]).stdout == b"a  b\n"


def test_an_unknown_target_is_refused_with_suggestions():
    with pytest.raises(UsageError, match=r"unknown target 'hots'.*did you mean 'host'"):
        open_target("hots")
