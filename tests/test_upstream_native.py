"""What the runner uses of ExecuTorch without a header: each part works, or is missed and named."""

import re
import shutil
import subprocess
import sys
from importlib import metadata

import pytest
from devices import needs_compiler

import workbench as wb
from workbench.errors import RunnerError
from workbench.run import build
from workbench.run.build import NATIVE
from workbench.run.isa import TOGGLES, resolve_toggle
from workbench.run.runner import find_runner
from workbench.upstream import TESTED

pytestmark = [pytest.mark.upstream, needs_compiler]
linux = pytest.mark.skipif(sys.platform != "linux", reason="the delegate calls it on Linux only")

BRIEF = wb.MeasureOptions(toggle="none", runs=4, processes=2, evidence=False, roof=False)
START, SUBMIT = '"5startEPNS_7runtime11EventTracerE"', '"12submit_traceEv"'
RESIZE = '"24_unsafe_reset_threadpoolEj"'


@pytest.fixture
def renamed(monkeypatch, tmp_path):
    """Builds a runner whose ``upstream.h`` has other names; returns it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def build_runner(*names):
        folder = shutil.copytree(NATIVE, tmp_path / "native")
        header = folder / "upstream.h"
        text = header.read_text()
        for name in names:
            assert text.count(name) == 1
            text = text.replace(name, f"{name[:-1]}_renamed{name[-1]}")
        header.write_text(text)
        monkeypatch.setattr(build, "NATIVE", folder)
        return find_runner()

    return build_runner


def trace(runner, program, folder, *flags):
    """The session of a runner that traces a program, and its operators' times in ns."""
    flags = ["--model_path", str(program), "--etdump_path", str(folder / "x.etdump"), *flags]
    with runner.open(flags, timeout_s=60) as session:
        session.run(5)
        session.etdump(folder / "x.etdump")
    events = wb.read_etdump(folder / "x.etdump")
    return session, events.loc[events["kind"] == "delegate_operator", "duration_ns"]


@linux
def test_nothing_is_missing_of_a_tested_version(conv_pte, tmp_path):
    session, times = trace(find_runner(), conv_pte, tmp_path)
    assert session.ready.missing == {}
    assert (times % 1000 > 0).mean() > 0.5
    assert metadata.version("executorch") in TESTED


@linux
@pytest.mark.cases
def test_without_the_profiler_symbol_traces_come_from_processes_of_their_own(
    renamed, conv_pte, tmp_path
):
    renamed(START)
    run = wb.measure(conv_pte, options=BRIEF, root=tmp_path)
    reason = "not called by XNNPACK's delegate, so traces come from processes of their own"
    assert run.record.missing == {"profiler symbol": reason}
    assert run.record.state == "complete"
    assert all(session.complete for session in run.record.sessions)
    untraced = [session for session in run.record.sessions if not session.traced]
    assert all(batch.wall_ns for session in untraced for batch in session.batches)
    measured = run.measurements[0]
    assert measured.latency_ms > 0
    operators = measured.operators[measured.operators["kind"] == "delegated"]
    assert len(operators) >= 3 and (operators["mean_ms"] > 0).all()
    assert f"profiler symbol: {reason}" in run.caveats
    assert ("profiler symbol", "note", reason) in [*run.checks.itertuples(index=False, name=None)]
    doctor = {check.subject: check for check in wb.examine_machine()}
    assert (doctor["profiler symbol"].status, doctor["profiler symbol"].detail) == ("note", reason)
    assert "1.5.1" in doctor["profiler symbol"].fix and "parts of ExecuTorch" not in doctor


@linux
@pytest.mark.whole
def test_each_part_that_has_no_effect_is_named(renamed, conv_pte, tmp_path):
    runner = renamed(SUBMIT, "clock_gettime(", RESIZE, '"cpuinfo_isa"')
    session, times = trace(runner, conv_pte, tmp_path, "--cpu_threads", "1")
    assert session.ready.missing == {
        "ISA mask": "no CPU feature can be hidden: cpuinfo_isa is not exported",
        "operator clock": "in whole microseconds: XNNPACK does not read the runner's clock",
        "report symbol": "not called by XNNPACK's delegate, so its traced calls include reporting",
        "thread pool": "cannot be resized; one thread runs without it",
    }
    assert len(times) and not (times % 1000).any()
    assert session.ready.threads == 1
    with pytest.raises(RunnerError, match=r"thread pool cannot be resized -> measure one thr"):
        trace(runner, conv_pte, tmp_path, "--cpu_threads", "7")
    assert resolve_toggle("auto", runner.isa).name == "none"
    with pytest.raises(wb.WorkbenchError, match="CPU features cannot be hidden"):
        resolve_toggle(TOGGLES[runner.isa.arch][0].name, runner.isa)


def test_no_other_file_of_the_runner_names_private_parts():
    private = re.compile(r"_ZN|__asm__\(|executorch_backend_xnnpack|cpuinfo_(?!isa)")
    names = {path.name for path in NATIVE.iterdir() if private.search(path.read_text())}
    assert names == {"upstream.h"}


@pytest.mark.whole
def test_another_api_of_executorch_is_told_from_a_bad_compiler(tmp_path):
    """A copy of the wheel's headers in which a function of the tracer takes another argument."""
    sdk = tmp_path / "executorch"
    shutil.copytree(build.find_sdk() / "include", sdk / "include")
    (sdk / "lib").symlink_to(build.find_sdk() / "lib")
    header = sdk / "include/executorch/devtools/etdump/etdump_flatcc.h"
    text = header.read_text()
    assert "void create_event_block(const char* name)" in text
    header.write_text(text.replace("create_event_block(const char* name)", "create_event_block()"))
    with pytest.raises(wb.WorkbenchError) as caught:
        build.compile_runner(sdk, build.find_compiler(), tmp_path / "runner")
    said = str(caught.value)
    assert re.search(r"the runner does not compile: \S+:\d+:\d+: error: .*create_event_block", said)
    assert f"C++ API differs from the tested {' and '.join(TESTED)}" in said
    assert f"install executorch=={TESTED[-1]}" in said and "CXX" not in said


@pytest.mark.whole
def test_the_runner_compiles_without_warnings():
    flags = ["-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
    subprocess.run(
        [*build.find_compiler(), *build.compile_flags(build.find_sdk()), *flags], check=True
    )


#: Reports operators as XNNPACK does, but 20 ms later, which takes no CPU time.
DELAY = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>
#define NAME "_ZN10executorch8backends7xnnpack8delegate9profiling11XNNProfiler12submit_traceEv"
void submit_trace(void* profiler) __asm__(NAME);
void submit_trace(void* profiler) {
  usleep(20000);
  ((void (*)(void*))dlsym(RTLD_NEXT, NAME))(profiler);
}
"""


@linux
def test_what_others_take_while_operators_are_reported_is_no_cpu_time(
    conv_pte, tmp_path, monkeypatch
):
    """It would be taken off that of the inference, which would be negative."""
    library = tmp_path / "delay.so"
    (tmp_path / "delay.c").write_text(DELAY)
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", library, tmp_path / "delay.c", "-ldl"], check=True
    )
    runner = find_runner()
    monkeypatch.setenv("LD_PRELOAD", str(library))
    flags = ["--model_path", str(conv_pte), "--etdump_path", str(tmp_path / "x.etdump")]
    with runner.open(flags, timeout_s=60) as session:
        session.run(3, traced=True)
        traced, untraced = session.run(5, traced=True), session.run(5, traced=False)
    assert 0 < min(traced.cpu_ns) < 20e6
    for clock in ("wall_ns", "cpu_ns"):
        assert min(getattr(traced, clock)) < 5e6 + 2 * min(getattr(untraced, clock))
    assert min(untraced.cpu_ns) > 0
