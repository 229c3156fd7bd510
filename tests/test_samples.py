"""PC samples: what the runner writes, what the reader takes, and which functions they name."""

import json
import sys

import numpy as np
import pytest

from workbench.errors import RunnerError, TraceError
from workbench.run.build import build_runner, installed_compiler
from workbench.run.session import RunnerSession
from workbench.trace.etdump import read_etdump
from workbench.trace.samples import (
    locate_samples,
    read_functions,
    read_samples,
    resolve_functions,
    write_functions,
)

NEEDS_SAMPLER = pytest.mark.skipif(
    installed_compiler() is None or not sys.platform.startswith("linux"), reason="no native sampler"
)
HZ = 499
MODULES = [{"path": "/lib/a.so", "build_id": "aa"}, {"path": "/lib/b.so", "build_id": ""}]


def content(**changes):
    """Two threads: one that computes all the time, one that is woken only to be sampled."""
    return {
        **{"format": "workbench samples", "version": 1, "machine": "x86_64", "hz": 1000},
        **{"lost": 0, "modules": MODULES},
        **{"time_ns": [3000, 1000, 2000, 2500, 1500], "cpu_ns": [900, 0, 10, 700_000, 600]},
        **{"thread": [7, 7, 8, 8, 9], "module": [0, 0, 1, -1, 0], "address": [5, 6, 7, 0, 9]},
        **changes,
    }


def read(tmp_path, text):
    path = tmp_path / "x.samples"
    path.write_bytes(text if isinstance(text, bytes) else json.dumps(text).encode())
    return read_samples(path)


def test_samples_are_read_in_the_order_of_time_busy_while_the_cpu_clock_advances(tmp_path):
    frame = read(tmp_path, content())
    assert frame["time_ns"].tolist() == [1000, 1500, 2000, 2500, 3000]
    assert frame["thread"].tolist() == [7, 9, 8, 8, 7]
    assert frame["library"].tolist() == ["/lib/a.so", "/lib/a.so", "/lib/b.so", "", "/lib/a.so"]
    assert frame["build_id"].tolist() == ["aa", "aa", "", "", "aa"]
    assert frame["address"].tolist() == [6, 9, 7, 0, 5]
    assert frame["busy"].tolist() == [False, False, False, True, False]


def test_no_samples_are_an_empty_frame(tmp_path):
    nothing = {key: [] for key in ("time_ns", "cpu_ns", "thread", "module", "address")}
    assert len(read(tmp_path, content(**nothing))) == 0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "not JSON"),
        (b"[]", "not a JSON object"),
        (b"[" * 100_000, "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (content(format="other"), "no file of samples"),
        (content(version=2), "version 2"),
        (content(hz=0), "rate of 0"),
        (content(modules=None), "modules lack"),
        (content(modules=[{"path": 1, "build_id": "x"}]), "modules lack"),
        (content(modules=[]), "module 1 of 0"),
        (content(module=[0, 0, 2, 0, 0]), "module 2 of 2"),
        (content(module=[0, 0, -2, 0, 0]), "a sample in module"),
        (content(time_ns=[1, 2]), "different lengths"),
        (content(time_ns="abcde"), "'time_ns' is no list"),
        (content(time_ns=[1, 2, 3, 4, 2**64]), "'time_ns' is no list"),
        (content(time_ns=[1, 2, 3, 4, 1.5]), "'time_ns' is no list"),
        (content(time_ns=[[1], [2], [3], [4], [5]]), "'time_ns' is no list"),
        (content(cpu_ns=[True] * 5), "'cpu_ns' is no list"),
    ],
    ids=str,
)
def test_malformed_files_of_samples_are_refused(tmp_path, text, says):
    with pytest.raises(TraceError, match=says):
        read(tmp_path, text)


def test_a_missing_file(tmp_path):
    with pytest.raises(TraceError, match="No such file"):
        read_samples(tmp_path / "none.samples")


@pytest.fixture(scope="module")
def sampled(conv_pte, tmp_path_factory):
    """Samples and trace of a third of a second of the convolution net."""
    folder = tmp_path_factory.mktemp("sampled")
    flags = ["--server_mode", "--cpu_threads", "1", "--model_path", conv_pte]
    watch = ["--etdump_path", folder / "x.etdump", "--samples_path", folder / "x.samples"]
    rate = ["--sample_hz", str(HZ)]
    with RunnerSession([build_runner(), *flags, *watch, *rate], timeout_s=60) as session:
        size = int(0.3e9 / min(session.run(20).cpu_ns)) + 1
        session.reset()
        session.run(size)
        session.etdump(folder / "x.etdump")
        session.samples(folder / "x.samples")
        session.run(1)
        session.samples(folder / "again.samples")
    return folder


@NEEDS_SAMPLER
def test_samples_are_within_the_runs_of_the_trace(sampled):
    frame, events = read_samples(sampled / "x.samples"), read_etdump(sampled / "x.etdump")
    frame = locate_samples(frame, resolve_functions([frame]))
    methods = events[events["kind"] == "method"]
    start = methods["start_ns"].to_numpy()
    run = np.searchsorted(start, frame["time_ns"], side="right") - 1
    inside = (run >= 0) & (frame["time_ns"] < (start + methods["duration_ns"].to_numpy())[run])
    # A thread that waits for a core is mostly sampled where it reads the clocks between two runs.
    computes = frame["library"].str.contains("xnnpack")
    assert computes.sum() > 10
    assert inside[computes].mean() > 0.95
    # The timer is that of the real time; a thread that has to wait is sampled once meanwhile.
    wanted = HZ * methods["duration_ns"].sum() / 1e9
    assert frame["busy"].sum() > 0.25 * wanted


@NEEDS_SAMPLER
def test_each_file_has_the_samples_since_the_previous_one(sampled):
    first, again = (read_samples(sampled / f"{name}.samples") for name in ("x", "again"))
    assert len(again) < 0.2 * len(first)
    if len(again):
        assert again["time_ns"].min() > first["time_ns"].max()


@NEEDS_SAMPLER
def test_samples_name_functions_and_their_code(sampled):
    samples = read_samples(sampled / "x.samples")
    functions = resolve_functions([samples])
    found = locate_samples(samples[samples["busy"]], functions)
    xnnpack = found[found["library"].str.contains("xnnpack")]
    elsewhere = found["library"].str.contains("vdso|libc")  # between runs, if cores are busy
    assert len(xnnpack) > 0.4 * (~elsewhere).sum()
    assert (xnnpack["code"] != "unknown").mean() > 0.99
    written = read_functions(write_functions(functions, sampled / "functions.json"))
    assert locate_samples(samples, written).equals(locate_samples(samples, functions))


def test_samples_without_their_library_are_unknown(tmp_path):
    samples = read(tmp_path, content())
    functions = resolve_functions([samples])
    assert len(functions) == 0
    found = locate_samples(samples, functions)
    assert set(found["code"]) == {"unknown"}
    assert found["function"].tolist()[2:4] == ["[b.so]", "[no file]"]


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b"[]",
        b'{"format": "workbench functions", "version": 1, "functions": 3}',
        b'{"format": "workbench functions", "version": 1, "functions": [{"library": "x"}]}',
        b'{"format": "workbench functions", "version": 1, "functions": [{"library": "x", '
        b'"name": "f", "build_id": "1", "start": -1, "size": 1, "code": "avx"}]}',
    ],
)
def test_malformed_tables_of_functions_are_refused(tmp_path, text):
    path = tmp_path / "functions.json"
    path.write_bytes(text)
    with pytest.raises(TraceError):
        read_functions(path)


@NEEDS_SAMPLER
@pytest.mark.parametrize("hz", ["0", "10001", "fast"])
def test_rates_out_of_range(conv_pte, tmp_path, hz):
    flags = ["--server_mode", "--model_path", conv_pte, "--samples_path", tmp_path / "s"]
    with pytest.raises(RunnerError, match="--sample_hz takes a number from 1 to 10000"):
        RunnerSession([build_runner(), *flags, "--sample_hz", hz], timeout_s=60)


@NEEDS_SAMPLER
def test_a_runner_that_does_not_sample_says_so(conv_pte, tmp_path):
    flags = ["--server_mode", "--cpu_threads", "1", "--model_path", conv_pte]
    with RunnerSession([build_runner(), *flags], timeout_s=60) as session:
        with pytest.raises(RunnerError, match="nothing is sampled: start with --samples_path"):
            session.samples(tmp_path / "s")
        session.run(1)


@pytest.mark.whole
@NEEDS_SAMPLER
def test_every_thread_of_the_pool_is_sampled(conv_pte, tmp_path):
    flags = ["--server_mode", "--cpu_threads", "2", "--model_path", conv_pte]
    path = tmp_path / "two.samples"
    with RunnerSession([build_runner(), *flags, "--samples_path", path], timeout_s=60) as session:
        session.run(int(0.3e9 / min(session.run(20).wall_ns)) + 1)
        session.samples(path)
    assert read_samples(path).query("busy")["thread"].nunique() >= 2
