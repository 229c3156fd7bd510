"""Compiling the native runner: caching, concurrency and error messages."""

import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from devices import needs_compiler

import workbench as wb

#: A runner that can only describe itself.
MUTE = r"""
printf '#!/bin/sh\necho "{\\"runner\\": \\"mute\\", \\"compiler\\": \\"x\\"}"\n' > "$out"
chmod +x "$out"
"""


def find_runner():
    return Path(wb.find_runner().command[0])


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "executorch-workbench"


@pytest.fixture
def fake_compiler(monkeypatch, tmp_path):
    """A compiler that a test writes as a shell script; ``$out`` is the file to make."""

    def install(body):
        path = tmp_path / "fake-c++"
        path.write_text(
            '#!/bin/sh\nfor word in "$@"; do out=$word; done\n'
            f'if [ "$out" = --version ]; then echo fake 1.0; exit; fi\n{body}\n'
        )
        path.chmod(0o755)
        monkeypatch.setenv("CXX", str(path))
        return path

    return install


@pytest.fixture
def no_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)


@pytest.mark.cases
@needs_compiler
def test_the_runner_is_compiled_once_and_describes_itself(cache):
    runner = wb.find_runner()
    binary = Path(runner.command[0])
    assert binary.parent == cache
    assert runner.description["kind"] == "native"
    assert runner.description["compiler"].split()[0] in ("gcc", "clang")
    assert len(runner.description["sha256"]) == 64
    assert runner.description["executorch"].startswith("1.")
    built = binary.stat().st_mtime_ns
    assert find_runner() == binary
    assert binary.stat().st_mtime_ns == built


RUNNER_OF_CHANGED_SOURCE = """
import sys, workbench as wb
print(wb.find_runner().command[0])
print([name for name in sys.modules if name.split(".")[0] in ("executorch", "torch")])
"""


def test_compiler_flags_and_source_identify_the_binary(cache, fake_compiler, monkeypatch, tmp_path):
    """And the wheel is found without importing it."""
    compiler = fake_compiler(MUTE)
    first = find_runner()
    monkeypatch.setenv("CXX", f"{compiler} -O3")
    second = find_runner()
    package = tmp_path / "changed" / "workbench"
    shutil.copytree(Path(wb.__file__).parent, package, copy_function=os.symlink)
    header = package / "run" / "native" / "json.h"
    text = header.read_text()
    header.unlink()
    header.write_text(f"{text}// changed\n")
    command = [sys.executable, "-c", RUNNER_OF_CHANGED_SOURCE]
    said = subprocess.check_output(command, text=True, cwd=package.parent)
    third, imported = said.splitlines()
    assert len({first, second, Path(third)}) == 3
    assert Path(third).parent == cache
    assert imported == "[]"


def test_threads_that_need_a_runner_compile_it_once(cache, fake_compiler, tmp_path):
    fake_compiler(f'basename "$out" >> {tmp_path}/made; sleep 0.2; {MUTE}')
    with ThreadPoolExecutor(4) as pool:
        paths = {future.result() for future in [pool.submit(find_runner) for _ in range(4)]}
    (path,) = paths
    assert {file.stem for file in cache.glob("runner-*")} == {path.name}
    assert os.access(path, os.X_OK)
    assert (tmp_path / "made").read_text().split().count(path.name) == 1


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (
            "echo 'In file included from x:' >&2; echo 'x.h:3: error: no way' >&2; exit 1",
            r"the compiler does not compile C\+\+17: x.h:3: error: no way -> set \$CXX to another",
        ),
        ("exit 1", "no reason given"),
        (
            'echo nothing > "$out"; chmod +x "$out"',
            "cannot start|no answer to --version",
        ),
        ('printf "#!/bin/sh\\n" > "$out"; chmod +x "$out"', "no answer to --version"),
    ],
)
def test_a_compiler_or_runner_that_fails_is_one_line(cache, fake_compiler, body, says):
    fake_compiler(body)
    with pytest.raises(wb.WorkbenchError, match=says) as caught:
        wb.find_runner()
    assert "\n" not in str(caught.value)
    if "exit 1" in body:
        assert list(cache.iterdir()) == []


def test_a_hanging_compiler_times_out(cache, fake_compiler, monkeypatch, tmp_path):
    fake_compiler(f"sleep 60 & echo $! > {tmp_path}/child; wait")
    monkeypatch.setattr("workbench.run.build.TOOL_TIMEOUT_S", 0.5)
    start = time.monotonic()
    with pytest.raises(wb.WorkbenchError, match="timed out"):
        wb.find_runner()
    assert time.monotonic() - start < 10


def test_without_compiler_and_zig_the_error_names_the_fix(cache, no_compiler, monkeypatch):
    find = wb.find_runner
    hide_packages(monkeypatch, "pip")
    monkeypatch.setattr(sys, "_base_executable", "no-python")
    with pytest.raises(
        wb.WorkbenchError, match=r"no C\+\+ compiler, and no Zig: no pip.*install g\+\+"
    ):
        find()
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(wb.WorkbenchError, match=r"no C\+\+ compiler -> xcode-select --install"):
        find()


def test_pip_may_be_a_module_of_the_python_that_made_the_environment(
    cache, no_compiler, monkeypatch, tmp_path
):
    base = tmp_path / "python"
    base.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/calls\ntest "$3" = --version\n')
    base.chmod(0o755)
    hide_packages(monkeypatch, "pip")
    monkeypatch.setattr(sys, "_base_executable", str(base))
    with pytest.raises(wb.WorkbenchError, match=r"no Zig: cannot get ziglang"):
        wb.find_runner()
    assert "\n-m pip download " in (tmp_path / "calls").read_text()


def test_a_compilation_is_announced(cache, fake_compiler):
    said = []
    fake_compiler(MUTE)
    for _ in range(2):
        with contextlib.suppress(wb.WorkbenchError):
            wb.find_runner(progress=lambda text, _: said.append(text))
    assert said == ["compiling the runner (once)"]


def hide_packages(monkeypatch, *names, replacement=None):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: replacement if name in names else real(name, *rest),
    )


@pytest.mark.cases
@pytest.mark.timeout(900)
@pytest.mark.skipif(sys.platform != "linux", reason="Zig is for Linux")
def test_zig_compiles_the_runner_where_no_compiler_is_installed(no_compiler, conv_pte):
    runner = wb.find_runner()
    assert runner.description["compiler"].startswith("clang")
    flags = ["--model_path", conv_pte, "--num_executions", "3"]
    done = subprocess.run([*runner.command, *flags], capture_output=True, text=True, check=True)
    ready, timed = map(json.loads, done.stdout.splitlines())
    assert (ready["runner"], len(timed["wall_ns"])) == ("native", 3)


def test_a_wrong_cxx_is_an_error(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler -O2")
    with pytest.raises(wb.WorkbenchError, match="no such compiler: 'no-such-compiler'"):
        wb.find_runner()


def test_a_cache_that_cannot_be_written(monkeypatch, tmp_path, fake_compiler):
    fake_compiler(MUTE)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(wb.WorkbenchError, match="XDG_CACHE_HOME"):
        wb.find_runner()


def test_a_cache_that_runs_no_programs_is_refused_before_anything_is_compiled(cache, monkeypatch):
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_NOEXEC))
    with pytest.raises(wb.WorkbenchError, match=r"\(noexec\) -> set XDG_CACHE_HOME"):
        find_runner()


def test_a_relative_cache_is_ignored(monkeypatch, tmp_path, fake_compiler):
    fake_compiler(MUTE)
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_runner().parent == tmp_path / ".cache" / "executorch-workbench"


def test_without_executorch_or_its_libraries(monkeypatch, tmp_path):
    find = wb.find_runner
    hide_packages(monkeypatch, "executorch")
    with pytest.raises(wb.WorkbenchError, match="executorch is not installed"):
        find()
    wheel = SimpleNamespace(submodule_search_locations=(str(tmp_path),))
    hide_packages(monkeypatch, "executorch", replacement=wheel)
    with pytest.raises(wb.WorkbenchError, match=r"no C\+\+ libraries"):
        find()


def test_a_compiler_that_warns_compiles(cache, fake_compiler):
    warn = 'echo "x.h:3: warning: no better way" >&2'
    fake_compiler(f'case " $* " in *" -Werror "*) {warn}; exit 1;; esac; {warn}; {MUTE}')
    assert find_runner().is_file()


def test_a_link_that_fails_names_the_symbol(cache, fake_compiler):
    lines = ("ld: in function main:", "x.o: undefined reference to et_gone", "error: ld returned 1")
    fails = "; ".join(f"echo '{line}' >&2" for line in lines)
    fake_compiler(f'case "$*" in *trivial.cpp*) exit 0;; esac; {fails}; exit 1')
    with pytest.raises(wb.WorkbenchError, match=r"not compile: x\.o: undefined reference"):
        find_runner()
