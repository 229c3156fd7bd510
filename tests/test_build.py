"""Compiling the native runner: caching, concurrency and error messages."""

import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from workbench.errors import RunnerError, SetupError
from workbench.run import build
from workbench.run.build import (
    build_runner,
    describe_runner,
    find_compiler,
    find_sdk,
    installed_compiler,
)


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "executorch-workbench"


@pytest.fixture
def fake_compiler(monkeypatch, tmp_path):
    """A compiler that a test writes as a shell script; ``$out`` is the file to make."""

    def install(body, name="fake-c++"):
        path = tmp_path / name
        path.write_text(
            '#!/bin/sh\nfor word in "$@"; do out=$word; done\n'
            f'if [ "$out" = --version ]; then echo fake 1.0; exit; fi\n{body}\n'
        )
        path.chmod(0o755)
        monkeypatch.setenv("CXX", str(path))
        return path

    return install


@pytest.mark.slow
@pytest.mark.skipif(installed_compiler() is None, reason="no C++ compiler")
def test_the_source_compiles_without_a_warning(cache, monkeypatch):
    monkeypatch.setenv("CXX", " ".join([*find_compiler(), "-Werror"]))
    binary = build_runner()
    assert binary.parent == cache
    said = describe_runner(binary)
    assert said["kind"] == "native"
    assert said["compiler"].split()[0] in ("gcc", "clang")
    assert len(said["sha256"]) == 64
    assert said["executorch"].startswith("1.")
    built = binary.stat().st_mtime_ns
    assert build_runner() == binary
    assert binary.stat().st_mtime_ns == built


def test_finding_the_wheel_does_not_import_it():
    code = "import sys; from workbench.run.build import find_sdk; find_sdk();"
    code += "print([m for m in sys.modules if m.split('.')[0] in ('executorch', 'torch')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_compiler_flags_and_source_identify_the_binary(cache, fake_compiler, monkeypatch, tmp_path):
    compiler = fake_compiler('echo binary > "$out"; chmod +x "$out"')
    first = build_runner()
    monkeypatch.setenv("CXX", f"{compiler} -O3")
    second = build_runner()
    source = tmp_path / "native"
    shutil.copytree(build.NATIVE, source)
    with open(source / "json.h", "a") as file:
        file.write("// changed\n")
    monkeypatch.setattr(build, "NATIVE", source)
    third = build_runner()
    assert len({first, second, third}) == 3
    assert {path.stem for path in cache.iterdir()} == {path.name for path in (first, second, third)}


def test_concurrent_builds_leave_one_binary(cache, fake_compiler):
    fake_compiler('sleep 0.2; echo "$$" > "$out"; chmod +x "$out"')
    with ThreadPoolExecutor(8) as pool:
        paths = {future.result() for future in [pool.submit(build_runner) for _ in range(8)]}
    (path,) = paths
    assert {file.stem for file in cache.iterdir()} == {path.name}
    assert os.access(path, os.X_OK)


def test_a_compiler_error_is_one_line(cache, fake_compiler):
    fake_compiler("echo 'In file included from x:' >&2; echo 'x.h:3: error: no way' >&2; exit 1")
    with pytest.raises(SetupError, match=r"does not compile: x.h:3: error: no way"):
        build_runner()
    assert list(cache.iterdir()) == []


def test_a_silent_compiler_is_reported_too(cache, fake_compiler):
    fake_compiler("exit 1")
    with pytest.raises(SetupError, match="no reason given"):
        build_runner()


def test_a_hanging_compiler_times_out(cache, fake_compiler, monkeypatch):
    fake_compiler("exec sleep 30")
    monkeypatch.setattr(build, "COMPILE_TIMEOUT_S", 0.2)
    start = time.monotonic()
    with pytest.raises(SetupError, match="timed out"):
        build_runner()
    assert time.monotonic() - start < 10


@pytest.fixture
def no_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert installed_compiler() is None


def test_without_compiler_and_zig_the_error_names_the_fix(cache, no_compiler, monkeypatch):
    monkeypatch.setattr(build, "_pip", lambda: ["false"])
    with pytest.raises(SetupError, match=r"no C\+\+ compiler, and no Zig: .*install g\+\+"):
        build_runner()
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(SetupError, match=r"no C\+\+ compiler -> xcode-select --install"):
        build_runner()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(sys.platform != "linux", reason="Zig is for Linux")
def test_zig_compiles_the_runner_where_no_compiler_is_installed(no_compiler, conv_pte):
    binary = build_runner()
    assert describe_runner(binary)["compiler"].startswith("clang")
    flags = ["--model_path", conv_pte, "--num_executions", "3"]
    done = subprocess.run([binary, *flags], capture_output=True, text=True, check=True)
    ready, timed = map(json.loads, done.stdout.splitlines())
    assert (ready["runner"], len(timed["wall_ns"])) == ("native", 3)


def test_a_wrong_cxx_is_an_error(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler -O2")
    with pytest.raises(SetupError, match="no-such-compiler"):
        find_compiler()


def test_a_cache_that_cannot_be_written(monkeypatch, tmp_path, fake_compiler):
    fake_compiler('echo binary > "$out"')
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(SetupError, match="XDG_CACHE_HOME"):
        build_runner()


def test_a_relative_cache_is_ignored(monkeypatch, tmp_path, fake_compiler):
    fake_compiler('echo binary > "$out"; chmod +x "$out"')
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert build_runner().parent == tmp_path / ".cache" / "executorch-workbench"


def test_without_executorch(monkeypatch):
    monkeypatch.setattr(build.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SetupError, match="not installed"):
        find_sdk()


def test_a_wheel_without_libraries(monkeypatch, tmp_path):
    class Spec:
        submodule_search_locations = (str(tmp_path),)

    monkeypatch.setattr(build.importlib.util, "find_spec", lambda name: Spec)
    with pytest.raises(SetupError, match=r"no C\+\+ libraries"):
        find_sdk()


def test_describing_another_program_fails(tmp_path):
    with pytest.raises(SetupError, match="cannot start"):
        describe_runner(tmp_path / "none")
    with pytest.raises(RunnerError, match="--version"):
        describe_runner([shutil.which("true")])
