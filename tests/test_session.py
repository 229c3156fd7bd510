"""Talking to a runner process that hangs, dies, or talks nonsense."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import workbench as wb
from workbench.api import UsageError
from workbench.jobs import Runner, RunnerError

READY = {
    **{"event": "ready", "runner": "fake", "clock": "none", "traced": True, "isa": "native"},
    **{"masked": [], "features": ["avx2"], "missing": {}, "threads": 1, "startup_ms": 1},
    **{"load_ms": 0.5, "method": "forward", "methods": ["forward"], "added_later": 1},
    **{"inputs": [{"dtype": "float32", "shape": [1, 2]}], "outputs": []},
}
TIMES = {"event": "run", "wall_ns": [7, 8], "cpu_ns": [5, 6], "preempted": [0, 1]}
PRELUDE = f"""
import json, os, signal, subprocess, sys, time
def say(value, end="\\n"):
    sys.stdout.write((value if isinstance(value, str) else json.dumps(value)) + end)
    sys.stdout.flush()
READY = json.loads({json.dumps(READY)!r})
TIMES = json.loads({json.dumps(TIMES)!r})
"""


@pytest.fixture
def fake(tmp_path):
    """Open a session with a runner that a test writes as a script."""
    opened = []

    def start(body, timeout_s=20.0):
        script = tmp_path / "fake runner.py"
        script.write_text(PRELUDE + body)
        # -S -E: this starts in 20 ms
        command = (sys.executable, "-S", "-E", str(script))
        session = Runner(command, {}).open([], timeout_s=timeout_s)
        opened.append(session)
        return session

    yield start
    for session in opened:
        session.kill()


def times_of(batch):
    return batch.wall_ns, batch.cpu_ns, batch.preempted


def is_gone(pid, within_s=5.0):
    """Whether a process ends (or is a zombie of ours) within that time."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        with contextlib.suppress(OSError):  # no /proc, or ended just now
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        time.sleep(0.02)
    return False


def test_a_conversation(fake, tmp_path):
    with fake(
        """
say(READY)
for line in sys.stdin:
    if line == "run 2\\n": say(TIMES)
    elif line.startswith("output "):
        say({"event": "output", "files": [{"dtype": "int64", "shape": [3], "index": 1}]})
    elif line == "quit\\n": break
    else: say({"event": line.split()[0]})
open(sys.argv[0] + ".ended", "w").close()
"""
    ) as session:
        assert session.ready.features == ("avx2",)
        assert session.ready.inputs[0].shape == (1, 2)
        assert times_of(session.run(2)) == ((7, 8), (5, 6), (0, 1))
        (output,) = session.output(tmp_path / "a b")
        assert (output.file, output.dtype, output.shape) == (f"{tmp_path}/a b-1.bin", "int64", (3,))
        session.etdump(tmp_path / "x.etdump")
        session.reset()
    assert (tmp_path / "fake runner.py.ended").exists()
    with pytest.raises(RunnerError, match="already ended"):
        session.run(2)


def test_answers_in_pieces(fake):
    session = fake(
        """
text = json.dumps(READY)
for i in range(0, len(text), 50): say(text[i:i+50], end=""); time.sleep(0.001)
say("")
for line in sys.stdin: say(json.dumps(TIMES), end=""); time.sleep(0.05); say("")
"""
    )
    assert session.run(2).wall_ns == (7, 8)
    assert session.run(2).wall_ns == (7, 8)


def test_a_long_answer(fake):
    session = fake(
        """
say(READY)
sys.stdin.readline()
say({"event": "run", "wall_ns": [10**9] * 200000, "cpu_ns": [1] * 200000,
     "preempted": [0] * 200000})
"""
    )
    assert len(session.run(200_000).wall_ns) == 200_000


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("time.sleep(60)", "no answer to 'load' within 0.5 s"),
        ("say('{\"event\"', end=''); time.sleep(60)", "no answer to 'load' within 0.5 s"),
        ("while True: say('x', end=''); time.sleep(0.05)", "no answer to 'load' within 0.5 s"),
        ("while True: say('x' * 65536, end='')", "without end"),
    ],
)
def test_a_runner_that_hangs_is_killed(fake, monkeypatch, body, says):
    monkeypatch.setattr("workbench.run.session.LONGEST_ANSWER", 2**20)
    start = time.monotonic()
    with pytest.raises(RunnerError, match=says):
        fake(body, timeout_s=0.5)
    assert time.monotonic() - start < 5


def test_a_hang_during_a_run_also_kills_children(fake):
    session = fake(
        """
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
READY["threads"] = child.pid
say(READY)
time.sleep(60)
""",
    )
    session.timeout_s = 0.3
    with pytest.raises(RunnerError, match="'run'"):
        session.run(1)
    assert is_gone(session._process.pid)
    assert is_gone(session.ready.threads)


def test_a_crash_names_the_signal_and_the_last_log_lines(fake):
    session = fake(
        """
say(READY)
sys.stderr.write("old news\\n"); sys.stderr.flush()
sys.stdin.readline()
sys.stderr.write("first\\nlast words\\n"); sys.stderr.flush()
os.kill(os.getpid(), signal.SIGSEGV)
"""
    )
    time.sleep(0.1)
    with pytest.raises(RunnerError, match=r"killed by SIGSEGV \(first; last words\)"):
        session.run(1)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("sys.exit(3)", "ended with code 3"),
        ("say('{\"ev', end=''); sys.exit(0)", "incomplete answer: '{\"ev'"),
        ("os.close(1); time.sleep(60)", "without an answer"),
    ],
)
def test_an_end_without_an_answer(fake, monkeypatch, body, said):
    monkeypatch.setattr("workbench.run.session.QUIT_TIMEOUT_S", 0.2)
    with pytest.raises(RunnerError, match=said):
        fake(body)


@pytest.mark.parametrize(
    "line",
    [
        *("hello", "", "[]", "null", "7", '"event"', "[" * 100_000, "\ufffd{}"),
        *('{"event": "done"}', '{"event": "ready"}', '{"event": "ready", "threads": "many"}'),
    ],
)
def test_an_invalid_answer_instead_of_ready(fake, line):
    with pytest.raises(RunnerError, match="unexpected answer") as caught:
        fake(f"say({line!r}); time.sleep(60)")
    assert caught.value.kind == "protocol"


@pytest.mark.parametrize("times", [{**TIMES, "wall_ns": [1]}, {**TIMES, "cpu_ns": ["x", 2]}, READY])
def test_a_wrong_number_of_iterations(fake, times):
    session = fake(f"say(READY); sys.stdin.readline(); say({times!r}); time.sleep(60)")
    with pytest.raises(RunnerError, match="unexpected answer"):
        session.run(2)


def test_a_failure_carries_message_log_and_hint(fake):
    with pytest.raises(RunnerError) as caught:
        fake("say({'error': 'truncated', 'message': 'x.pte: cut', 'log': ['a', 'b']}); sys.exit(4)")
    assert caught.value.kind == "truncated"
    assert str(caught.value) == "x.pte: cut (a; b) -> copy or export it again"


def test_without_a_log_standard_error_is_shown(fake):
    with pytest.raises(RunnerError, match=r"cut \(ExecuTorch says why\)"):
        fake(
            """
sys.stderr.write("ExecuTorch says why\\nerror: cut\\n"); sys.stderr.flush()
say({"error": "program", "message": "cut"})
"""
        )


def test_a_harmless_failure_leaves_the_session_open(fake):
    session = fake(
        """
say(READY)
sys.stdin.readline(); say({"error": "io", "message": "no space"})
sys.stdin.readline(); say(TIMES)
"""
    )
    with pytest.raises(RunnerError, match="no space"):
        session.reset()
    assert times_of(session.run(2)) == ((7, 8), (5, 6), (0, 1))


def test_a_failure_while_executing_ends_the_session(fake):
    session = fake("say(READY); sys.stdin.readline(); say({'error': 'execution'}); time.sleep(60)")
    with pytest.raises(RunnerError):
        session.run(1)
    assert is_gone(session._process.pid)


def test_a_path_with_a_line_break(fake, tmp_path):
    session = fake("say(READY); sys.stdin.read()")
    with pytest.raises(UsageError, match="line break"):
        session.output(tmp_path / "a\nquit")


def test_a_missing_program(tmp_path):
    with pytest.raises(wb.WorkbenchError, match="cannot start"):
        Runner((str(tmp_path / "none"),), {}).open([], timeout_s=1)


def test_a_runner_that_does_not_end_is_killed(fake, monkeypatch):
    monkeypatch.setattr("workbench.run.session.QUIT_TIMEOUT_S", 0.2)
    with fake("say(READY); time.sleep(60)") as session:
        pass
    assert is_gone(session._process.pid)


def test_interrupt_while_waiting_leaves_nothing_behind(fake):
    session = fake("say(READY); time.sleep(60)")
    assert os.getsid(session._process.pid) != os.getsid(0)

    def interrupt(number, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            session.run(1)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert is_gone(session._process.pid)


@pytest.mark.skipif(sys.platform != "linux", reason="parent-death signals are Linux's")
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "in the middle of a run"])
def test_killing_the_driver_ends_the_runner(conv_pte, busy):
    driver = f"""
import time
import workbench as wb
session = wb.find_runner().open(["--model_path", {str(conv_pte)!r}], timeout_s=99)
print(session._process.pid, flush=True)
{"session.run(1000000)" if busy else "time.sleep(60)"}
"""
    process = subprocess.Popen([sys.executable, "-c", driver], stdout=subprocess.PIPE)
    pid = int(process.stdout.readline())
    time.sleep(0.1)
    process.kill()
    process.wait()
    process.stdout.close()
    assert is_gone(pid)


def test_runners_start_beside_threads_without_code_between_fork_and_exec(fake):
    """``preexec_fn`` may deadlock in a process with threads."""
    seen = []
    sys.addaudithook(lambda event, args: event == "os.fork" and seen.append(event))
    fake("say(READY)").close()
    assert not seen
