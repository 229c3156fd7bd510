"""The runner as a process: flags, exit codes, answers, and broken programs."""

import json
import os
import struct
import subprocess
import sys

import numpy as np
import pytest
from compiled import compile_cpp, find_compiler

import workbench as wb

FOREIGN = {
    "empty": b"",
    "short": b"ET12",
    "text": b"This is a letter and no program, but it is long enough to be one. " * 2,
    "random": np.random.default_rng(0).bytes(5000),
    "zeros": bytes(5000),
}


@pytest.fixture
def native():
    """The command of the native runner; ``$CXX`` chooses the compiler."""
    return list(wb.find_runner().command)


def ask(command, *flags, stdin=b""):
    """The exit code, the answers, and what went to standard error."""
    done = subprocess.run([*command, *flags], input=stdin, capture_output=True, timeout=120)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def assert_fails(command, *flags, code, kind, says):
    """One JSON line, one line on standard error, and the documented exit code."""
    returncode, answers, errors = ask(command, *flags)
    assert (returncode, len(answers)) == (code, 1), answers
    assert answers[0]["error"] == kind
    assert says in answers[0]["message"]
    assert errors.decode().splitlines()[-1].startswith("error: ")
    return answers[0]


class Live:
    """A runner in server mode: a command in, an answer out."""

    def __init__(self, command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.ready = self.read("ready")

    def read(self, event):
        answer = json.loads(self.process.stdout.readline())
        assert answer["event"] == event, answer
        return answer

    def ask(self, command, *words, event=""):
        self.process.stdin.write(b" ".join(map(os.fsencode, (command, *words))) + b"\n")
        self.process.stdin.flush()
        return self.read(event or command)

    def run(self, count):
        return self.ask("run", str(count))

    def output(self, base):
        """The outputs of the last execution, as arrays."""
        files = self.ask("output", base)["files"]
        return [
            np.fromfile(f"{base}-{file['index']}.bin", file["dtype"]).reshape(file["shape"])
            for file in files
        ]


@pytest.fixture
def live(native):
    """Start a runner in server mode."""
    started = []

    def start(pte, *flags, threads=1):
        flags = ["--server_mode", "--cpu_threads", str(threads), "--model_path", pte, *flags]
        started.append(Live([*native, *flags]))
        return started[-1]

    yield start
    for runner in started:
        runner.process.communicate(b"quit\n", timeout=60)
        assert runner.process.returncode == 0


def bad_programs(whole):
    """What is no program, or not all of one: the bytes, and the word for it."""
    yield from ((content, "not_pte") for content in FOREIGN.values())
    yield whole[:4] + b"ET99" + whole[8:], "version"
    lengths = {1, 7, 8, 39, 40, 63, 64, 65, 4096, len(whole) - 4096, len(whole) - 1}
    lengths |= set(np.random.default_rng(1).integers(0, len(whole), 30).tolist())
    yield from ((whole[:length], "truncated" if length >= 64 else "not_pte") for length in lengths)
    for offset in (16, 24, 32):  # sizes and offsets in the header, so large that sums overflow
        for value in (2**32, 2**63, 2**64 - 1):
            yield whole[:offset] + struct.pack("<Q", value) + whole[offset + 8 :], "truncated"


def test_bad_programs(native, conv_pte, tmp_path):
    path = tmp_path / "bad.pte"
    for content, kind in bad_programs(conv_pte.read_bytes()):
        path.write_bytes(content)
        assert_fails(native, "--model_path", path, code=4, kind=kind, says=str(path))


def test_a_program_that_cannot_be_read(native, tmp_path):
    missing = tmp_path / "none.pte"
    assert_fails(native, "--model_path", missing, code=3, kind="model_file", says="No such file")
    assert_fails(native, "--model_path", tmp_path, code=3, kind="model_file", says="regular file")


def test_a_damaged_program(native, conv_pte, tmp_path):
    content = bytearray(conv_pte.read_bytes())
    content[64:1024] = bytes(960)
    path = tmp_path / "damaged.pte"
    path.write_bytes(content)
    assert_fails(native, "--model_path", path, code=4, kind="program", says="broken")


def test_a_program_in_an_old_format(native, conv_pte, tmp_path):
    """Without a segment of constants, as until September 2024."""
    content = bytearray(conv_pte.read_bytes())
    (table,) = struct.unpack_from("<I", content, 0)
    layout = table - struct.unpack_from("<i", content, table)[0]
    struct.pack_into("<H", content, layout + 4 + 2 * 5, 0)
    path = tmp_path / "old.pte"
    path.write_bytes(content)
    assert_fails(native, "--model_path", path, code=4, kind="version", says="is too old")
    path.write_bytes(content[:4] + b"ET11" + content[8:])
    assert_fails(native, "--model_path", path, code=4, kind="version", says="file format ET11")


def test_random_damage_never_hangs_and_always_answers(native, conv_pte, tmp_path):
    """Where ExecuTorch itself does not notice, the process may crash, but says nothing false."""
    whole, path = conv_pte.read_bytes(), tmp_path / "damaged.pte"
    rng = np.random.default_rng(2)
    for _ in range(40):
        content = bytearray(whole)
        for at in rng.integers(0, 20_000, 4):
            content[at] = rng.integers(256)
        path.write_bytes(content)
        code, answers, _ = ask(native, "--model_path", path)
        assert code <= 0 or "error" in answers[-1]


@pytest.mark.whole
def test_a_failed_check_inside_executorch_is_answered(native, tmp_path):
    source = tmp_path / "check.cpp"
    source.write_text(
        '#include "failure.h"\n#include <executorch/runtime/platform/assert.h>\n'
        'int main() { set_up_platform(); ET_CHECK_MSG(1 == 2, "one is not two"); }\n'
    )
    binary = tmp_path / "check"
    compile_cpp(source, binary)
    answer = assert_fails([binary], code=4, kind="check", says="a check inside ExecuTorch")
    assert "one is not two" in " ".join(answer["log"])


@pytest.mark.parametrize(
    ("kind", "known", "unknown"),
    [
        ("backend", b"XnnpackBackend", b"XnnpackBackenX"),
        ("operator", b"aten::mean", b"aten::meaX"),
    ],
)
def test_an_unknown_backend_or_operator(native, conv_pte, tmp_path, kind, known, unknown):
    path = tmp_path / "other.pte"
    path.write_bytes(conv_pte.read_bytes().replace(known, unknown))
    answer = assert_fails(native, "--model_path", path, code=5, kind=kind, says="")
    assert unknown.decode() in "\n".join([answer["message"], *answer["log"]])


def test_a_delegate_without_a_backend(native, conv_pte, tmp_path):
    data = bytearray(conv_pte.read_bytes())
    text = data.index(b"XnnpackBackend") - 4
    words = [int.from_bytes(data[at : at + 4], "little") for at in range(0, text, 4)]
    (field,) = (4 * n for n, word in enumerate(words) if 4 * n + word == text)
    for offset in range(4, 64, 4):  # the first entry of the table's layout says where its name is
        table = field - offset
        layout = table - int.from_bytes(data[table : table + 4], "little", signed=True)
        if 0 < layout < len(data) and data[layout + 4 : layout + 6] == bytes([offset, 0]):
            data[layout + 4 : layout + 6] = b"\0\0"
            break
    else:
        pytest.fail("no table")
    path = tmp_path / "other.pte"
    path.write_bytes(data)
    assert_fails(native, "--model_path", path, code=4, kind="program", says="no backend's name")


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--frobnicate"], "frobnicate"),
        (["--frobnicate=1"], "frobnicate"),
        (["positional"], "positional"),
        (["--model_path"], "--model_path"),
        (["--cpu_threads", "two"], "number from 1 to 1024, not 'two'"),
        (["--cpu_threads=0"], "number from 1 to 1024, not '0'"),
        (["--cpu_threads=-2"], "number from 1 to 1024, not '-2'"),
        (["--cpu_threads", ""], "number from 1 to 1024, not ''"),
        (["--num_executions", "1e3"], "number from 1 to 1000000, not '1e3'"),
        (["--num_executions", " 5"], "number from 1 to 1000000, not ' 5'"),
        (["--num_executions", "99999999999999999999"], "number from 1 to 1000000"),
        (["--warmup", "5x"], "number from 0 to 1000000, not '5x'"),
        (["--cpus", "0,x"], "number from 0 to 1023, not 'x'"),
        (["--server_mode=perhaps"], "true or false, not 'perhaps'"),
        ([], "--model_path is missing"),
        (["--model_path", "x.pte", "--isa", "avx9000"], "unknown ISA level 'avx9000'"),
        (["--model_path", "x.pte", "--isa_off", "avx9000"], "unknown feature 'avx9000'"),
    ],
)
def test_wrong_flags(native, flags, says):
    assert_fails(native, *flags, code=2, kind="usage", says=says)


def test_help_and_exit_codes(native):
    done = subprocess.run([*native, "--help"], capture_output=True, text=True)
    assert done.returncode == 0
    for flag in ("--model_path", "--inputs", "--isa", "--etdump_path", "Exit codes: 2 usage"):
        assert flag in done.stdout


def test_missing_libraries(native, conv_pte, tmp_path):
    flags = ["--model_path", conv_pte, "--lib_dir", tmp_path]
    assert_fails(native, *flags, code=5, kind="library", says="executorch_kernels_optimized")


def test_wrong_method_and_inputs(native, pair_pte, tmp_path):
    short, right = tmp_path / "short.bin", tmp_path / "right.bin"
    short.write_bytes(bytes(23))
    right.write_bytes(bytes(24))
    for flags, code, kind, says in [
        (["--method_name", "backward"], 2, "method", "forward, times"),
        (["--method_name", "times"], 2, "scalar", "input 1 is no tensor, but Int"),
        (["--inputs", right], 2, "inputs", "1 input files, the method takes 2"),
        (["--inputs", f"{short},{right}"], 2, "inputs", "has 23 bytes, input 0 takes 24"),
        (["--inputs", f"{right},{tmp_path}/none"], 9, "io", "No such file"),
    ]:
        # A given file that is there stands alone: this list is split.
        flags = ["--model_path", pair_pte, *flags]
        assert_fails(native, *flags, code=code, kind=kind, says=says)


@pytest.mark.parametrize("program", ["pair_pte", "unplanned_pte"])
def test_inputs_and_outputs(live, request, program, tmp_path):
    pte = request.getfixturevalue(program)
    x = np.arange(6, dtype=np.float32).reshape(2, 3) / 7
    index = np.array([3, -1, 2**40, 0])
    folder = tmp_path / "a folder, with a comma"
    folder.mkdir()
    x.tofile(folder / "x.bin")
    index.tofile(folder / "index.bin")
    files = ["--inputs", folder / "x.bin", "--inputs", folder / "index.bin"]
    runner = live(pte, *files, "--method_name", "forward")
    ready = runner.ready
    assert [(t["dtype"], t["shape"]) for t in ready["inputs"]] == [
        ("float32", [2, 3]),
        ("int64", [4]),
    ]
    assert [(t["dtype"], t["shape"]) for t in ready["outputs"]] == [
        ("float16", [2, 3]),
        ("int64", [4]),
    ]
    assert (ready["method"], ready["methods"], ready["backends"]) == (
        "forward",
        ["forward", "times"],
        [],
    )
    for _ in range(2):
        runner.run(3)
        first, second = runner.output(folder / "out")
        assert (first.dtype, second.dtype) == (np.float16, np.int64)
        np.testing.assert_array_equal(first, x.astype(np.float16) + 1)
        np.testing.assert_array_equal(second, index * 2)
    assert sorted(path.name for path in folder.iterdir()) == [
        *("index.bin", "out-0.bin", "out-1.bin", "x.bin")
    ]


SQUARE = """
import torch

class Square(torch.nn.Module):
    def forward(self, x):
        return x * x

def get_example_inputs():
    return (torch.ones(4, 3),)

def get_dynamic_shapes():
    return ({0: torch.export.Dim("rows", min=1, max=8)},)
"""


@pytest.fixture(scope="module")
def dynamic_pte(tmp_path_factory):
    """``x * x`` for ``x`` of up to 8 rows of 3."""
    folder = tmp_path_factory.mktemp("square")
    (folder / "square.py").write_text(SQUARE)
    options = wb.ExportOptions(backend="portable")
    return wb.export_model(f"{folder}/square.py:Square", options=options, root=folder).path


@pytest.mark.parametrize("rows", [1, 5, 8])
def test_a_dynamic_input_takes_any_size_up_to_its_largest(live, dynamic_pte, tmp_path, rows):
    x = np.arange(3 * rows, dtype=np.float32).reshape(rows, 3)
    x.tofile(tmp_path / "x.bin")
    flags = ["--inputs", tmp_path / "x.bin", "--input_shape", f"{rows}x3"]
    runner = live(dynamic_pte, *flags)
    assert runner.ready["inputs"][0]["shape"] == [8, 3]
    runner.run(2)
    (output,) = runner.output(tmp_path / "out")
    np.testing.assert_array_equal(output, x * x)


def test_wrong_input_shapes(native, dynamic_pte):
    for shapes, says in [
        (["9x3"], "larger than planned"),
        (["3"], "larger than planned"),
        (["2x3", "2x3"], "2 input shapes, the method takes 1"),
    ]:
        flags = [part for shape in shapes for part in ("--input_shape", shape)]
        flags = ["--model_path", dynamic_pte, *flags]
        assert_fails(native, *flags, code=2, kind="inputs", says=says)
    for shape in ("2xthree", "-1x3", "99999999999x3"):
        flags = ["--model_path", dynamic_pte, "--input_shape", shape]
        assert_fails(native, *flags, code=2, kind="usage", says="--input_shape")


def test_without_inputs_all_are_ones(live, pair_pte, tmp_path):
    runner = live(pair_pte)
    runner.run(1)
    first, second = runner.output(tmp_path / "out")
    assert set(first.flat) == set(second.flat) == {2}


@pytest.mark.parametrize("threads", [1, 2])
def test_iterations_and_traces(live, conv_pte, tmp_path, threads):
    trace = tmp_path / "default.etdump"
    runner = live(conv_pte, "--etdump_path", trace, threads=threads)
    ready = runner.ready
    assert (ready["traced"], ready["threads"]) == (True, threads)
    assert ready["startup_ms"] > ready["load_ms"] > 0
    timed = runner.run(10)
    assert len(timed["wall_ns"]) == 10
    assert min(timed["wall_ns"]) > 10_000
    assert min(timed["cpu_ns"]) > 10_000
    # CPU time is read around the wall clock, on a machine that may be busy.
    assert sum(timed["cpu_ns"]) < 1.1 * threads * sum(timed["wall_ns"]) + 20_000_000
    runner.ask("etdump", tmp_path / "ten runs.etdump")
    runner.run(20)
    runner.ask("etdump", tmp_path / "twenty.etdump")
    runner.run(5)
    runner.ask("reset")
    runner.run(10)
    runner.ask("etdump", tmp_path / "again.etdump")
    ten, twenty, again = (
        (tmp_path / f"{name}.etdump").read_bytes() for name in ("ten runs", "twenty", "again")
    )
    assert all(dump[8:12] == b"ED00" for dump in (ten, twenty, again))
    # Every dump holds what came after the one before: sizes go with the number of runs.
    per_run = (len(twenty) - len(again)) / 10
    assert per_run > 100
    assert abs(len(again) - 10 * per_run) < 2 * per_run
    assert not trace.exists()
    assert not list(tmp_path.glob("*.partial"))


def spent(trace):
    """The ledger of a trace in ns: runs by kinds."""
    ledger = wb.build_ledger(wb.read_etdump(trace))
    return ledger.pivot_table("duration_ns", "run", "kind", "sum", observed=True)


@pytest.mark.skipif(sys.platform != "linux", reason="traced runs have processes of their own")
def test_traced_and_untraced_runs_in_one_process(live, conv_pte, tmp_path):
    trace = tmp_path / "x.etdump"
    runner = live(conv_pte, "--etdump_path", trace)
    for _ in range(3):
        runner.ask("untraced", "7", event="run")
        timed = runner.run(2)["wall_ns"]
    runner.ask("etdump", trace)
    runs = spent(trace)
    assert len(runs) == 6
    # What tracing costs is the same in every inference, and part of what it took.
    assert runs["tracing"].nunique() == 1
    assert 0 < runs["tracing"].iloc[0] < 1e4
    assert runs.sum(axis=1).iloc[-2:].to_numpy() == pytest.approx(timed, rel=0.05, abs=20_000)


#: XNNPACK reports the first operator a microsecond longer than it was.
WRONG_TIMES = """
#include <cstddef>
#include <cstdint>
#include <dlfcn.h>
extern "C" int xnn_get_runtime_profiling_info(
    void* runtime, int what, size_t size, void* value, size_t* needed) {
  static const auto real = reinterpret_cast<int (*)(void*, int, size_t, void*, size_t*)>(
      dlsym(RTLD_NEXT, "xnn_get_runtime_profiling_info"));
  const int code = real(runtime, what, size, value, needed);
  if (what == 2 && code == 0 && value) ++*static_cast<uint64_t*>(value);
  return code;
}
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the clock is not refined")
def test_times_that_do_not_add_up_are_left_in_microseconds(native, conv_pte, tmp_path, monkeypatch):
    trace = tmp_path / "x.etdump"
    flags = ["--model_path", conv_pte, "--cpu_threads", "1", "--etdump_path", trace]
    source, preload = tmp_path / "wrong.cpp", tmp_path / "wrong.so"
    source.write_text(WRONG_TIMES)
    subprocess.run([*find_compiler(), "-shared", "-fPIC", source, "-o", preload], check=True)
    monkeypatch.setenv("LD_PRELOAD", str(preload))
    code, answers, _ = ask(native, *flags)
    reason = "in whole microseconds: nanoseconds do not add up to the delegate's time"
    assert (code, answers[0]["missing"]) == (0, {"operator clock": reason})
    events = wb.read_etdump(trace)
    operators = events[events["kind"] == "delegate_operator"]["duration_ns"]
    assert len(operators) and not (operators % 1000).any()


def test_a_trace_of_thousands_of_runs(live, pair_pte, tmp_path):
    trace, sizes, memory = tmp_path / "x.etdump", [], []
    runner = live(pair_pte, "--etdump_path", trace)
    for _ in range(4):
        runner.run(5000)
        runner.ask("etdump", trace)
        sizes.append(trace.stat().st_size)
        memory.append(resident_kb(runner.process.pid))
    assert min(sizes[1:]) > 5000 * 100
    assert max(sizes[1:]) - min(sizes[1:]) < 0.01 * sizes[1]
    assert memory[-1] - memory[1] < 1024


def resident_kb(pid):
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))


def test_invalid_commands(native, pair_pte, tmp_path):
    commands = [
        b"output " + os.fsencode(tmp_path / "early"),
        b"etdump",
        b"run 1",
        b"run",
        b"run 0",
        b"run 1e3",
        b"run 99999999999999999999",
        b"",
        b"dance",
        b"reset now",
        b"output",
        b"\xff\xfe\x00\x01",
        b"x" * 65536,
        b"output " + os.fsencode(tmp_path / "no\x00where"),
        b"output /proc/none/such",
        b"run 2",
        b"quit",
        b"run 1",
    ]
    flags = ["--server_mode", "--cpu_threads", "1", "--model_path", pair_pte]
    code, (ready, *answers), _ = ask(native, *flags, stdin=b"\n".join(commands) + b"\n")
    assert code == 0
    assert ready["event"] == "ready"
    assert len(answers) == len(commands) - 2
    assert "".join(answer.get("error", answer.get("event"))[0] for answer in answers) == (
        "ccruuuucccccccir"
    )
    assert all(len(answer.get("message", "")) < 500 for answer in answers)
    assert list(tmp_path.iterdir()) == []


def test_garbage_without_a_newline(native, pair_pte):
    garbage = np.random.default_rng(3).bytes(65536).replace(b"\n", b"")
    flags = ["--server_mode", "--cpu_threads", "1", "--model_path", pair_pte]
    code, (ready, answer), _ = ask(native, *flags, stdin=garbage)
    assert (code, ready["event"], answer["error"]) == (0, "ready", "command")


@pytest.mark.parametrize(
    "name", [b'quo"te\\ \t caf\xc3\xa9 \xf0\x9f\x98\x80', b"\xff\xc3(\xed\xa0\x80"]
)
def test_names_of_any_bytes(native, pair_pte, tmp_path, name):
    folder = tmp_path / os.fsdecode(name)
    folder.mkdir()
    (folder / "p.pte").write_bytes(pair_pte.read_bytes())
    flags = ["--model_path", folder / "p.pte", "--output_file", folder / "out"]
    code, answers, _ = ask(native, *flags, "--etdump_path", folder / "trace")
    assert code == 0
    assert [answer["event"] for answer in answers] == ["ready", "run", "output", "etdump"]
    written = sorted(path.name for path in folder.iterdir())
    assert written == ["out-0.bin", "out-1.bin", "p.pte", "trace"]


@pytest.mark.parametrize("name", [b'"\\ \t caf\xc3\xa9', b"\xff\xc3(\xed\xa0\x80", b"a\nb"])
def test_names_of_any_bytes_in_an_error(native, tmp_path, name):
    path = tmp_path / os.fsdecode(name)
    assert_fails(native, "--model_path", path, code=3, kind="model_file", says="No such file")


def test_one_shot(native, pair_pte, tmp_path):
    flags = ["--num_executions=7", "--warmup=2", "--cpu_threads=1", f"--model_path={pair_pte}"]
    trace = f"--etdump_path={tmp_path}/t.etdump"
    code, answers, _ = ask(native, *flags, trace, "--output_file", tmp_path / "out")
    assert code == 0
    ready, timed, output, etdump = answers
    assert ready["clock"].startswith("Method::execute")
    assert len(timed["wall_ns"]) == 7
    assert [file["index"] for file in output["files"]] == [0, 1]
    assert etdump["event"] == "etdump"
    assert (tmp_path / "t.etdump").stat().st_size > 0


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no CPU affinity")
def test_cpus(native, live, pair_pte):
    cpu = min(os.sched_getaffinity(0))
    runner = live(pair_pte, "--cpus", str(cpu))
    assert os.sched_getaffinity(runner.process.pid) == {cpu}
    flags = ["--model_path", pair_pte, "--server_mode", "--cpus"]
    assert_fails(native, *flags, "1023", code=2, kind="usage", says="--cpus")


def test_flags_of_other_runners_are_understood(native, pair_pte, tmp_path):
    flags = ["-model_path", pair_pte, "-cpu_threads=-1", "--data_path=", "--print_output", "all"]
    code, (_, timed, values), _ = ask(native, *flags, "-num_executions", "2")
    assert (code, len(timed["wall_ns"]), values["event"]) == (0, 2, "values")
    first, second = values["outputs"]
    assert (first["dtype"], first["shape"], first["first"]) == ("float16", [2, 3], [2] * 6)
    assert (second["first"], second["last"]) == ([2] * 4, [])
    assert_fails(native, "--print_output=some", code=2, kind="usage", says="none, summary, all")


def test_a_summary_shows_both_ends(native, conv_pte):
    code, answers, _ = ask(native, "--model_path", conv_pte, "--print_output=summary")
    (output,) = answers[-1]["outputs"]
    assert (code, output["shape"], len(output["first"]), output["last"]) == (0, [1, 10], 10, [])


def test_weights_from_a_separate_file(native, outside_pte, tmp_path):
    pte, ptd = outside_pte
    flags = ["--model_path", pte, "--print_output=all"]
    answer = assert_fails(native, *flags, code=4, kind="data", says="are in a .ptd file")
    assert answer["log"]
    code, answers, _ = ask(native, *flags, "--data_path", ptd)
    assert code == 0
    np.testing.assert_allclose(answers[-1]["outputs"][0]["first"], [6, 6], rtol=1e-6)
    (tmp_path / "no.ptd").write_bytes(bytes(500))
    assert_fails(
        native, *flags, "--data_path", tmp_path / "no.ptd", code=4, kind="data", says=".ptd"
    )
    assert_fails(native, *flags, "--data_path", tmp_path / "x", code=3, kind="model_file", says="x")


def test_a_corrupt_delegate_blob(native, conv_pte, tmp_path):
    content = bytearray(conv_pte.read_bytes())
    start = content.index(b"XH00") - 4  # the header of the XNNPACK payload, by its magic
    content[start : start + 8] = bytes(8)
    path = tmp_path / "blob.pte"
    path.write_bytes(content)
    answer = assert_fails(native, "--model_path", path, code=6, kind="delegate", says="delegates")
    assert answer["log"]
    assert all(line.isprintable() for line in answer["log"])
