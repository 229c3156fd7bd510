"""The runner for another machine, from pip and apt: caching, mirrors and error messages."""

import importlib.util
import re
from importlib import metadata

import pytest
from devices import Tools
from needed import needs
from packages import write_packages

import workbench as wb

pytestmark = needs("targets")
VERSION = metadata.version("executorch")


@pytest.fixture
def tools(monkeypatch, tmp_path):
    """Nothing on the PATH and in the cache but what a test writes."""
    tools = Tools(tmp_path / "bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tools.folder))
    real = importlib.util.find_spec
    hidden = {"pip": None}
    monkeypatch.setattr(importlib.util, "find_spec", lambda n, *r: hidden.get(n, n) and real(n, *r))
    tools.write_ssh(tmp_path / "home")
    # The runner that the compiler makes can say its version, and no more.
    runner = tools.write("runner", 'echo \'{"runner": "made", "compiler": "x"}\'', log=False)
    write_packages(tools, "aarch64", str(runner))
    tools.write("uname", '[ "$1" = -m ] && echo aarch64 || echo Linux 6', log=False)
    return tools


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache" / "executorch-workbench"


@pytest.fixture
def measure(tools, tmp_path):
    """Measure on that machine, as far as its runner gets; returns the error."""
    (tmp_path / "x.pte").write_bytes(b"x")

    def fail(**options):
        with pytest.raises(wb.WorkbenchError) as caught:
            options = wb.MeasureOptions(target="ssh:board", **options)
            wb.measure(tmp_path / "x.pte", options=options, root=tmp_path / "out")
        return str(caught.value)

    return fail


def test_a_bundle_is_made_once_and_copied(tools, measure, cache, tmp_path):
    assert "no answer to --print_isa" in measure()
    (call,) = tools.calls("pip3")
    for flag in ("--platform manylinux_2_28_aarch64", "--only-binary=:all:", "--require-hashes"):
        assert flag in call
    calls = [call for call in tools.calls("apt-get") if "indextargets" not in call]
    assert len(calls) == 3  # the first mirror has nothing, the second has it, the third is no main
    assert all("APT::Architecture=arm64" in call for call in calls)
    compiled = [call for call in tools.calls("g++") if call != "--version"]
    assert len(compiled) == 1
    assert "-Wl,-rpath,$ORIGIN" in compiled[0]
    (bundle,) = (path for path in (cache / "bundles").iterdir() if path.is_dir())
    names = {path.name for path in bundle.iterdir()}
    assert {"runner", "ld-linux-aarch64.so.1", "libc.so.6", "libexecutorch.so"} <= names
    (there,) = (tmp_path / "home").rglob("runner")
    assert there.read_bytes() == (bundle / "runner").read_bytes()
    measure()
    assert len(tools.calls("pip3")) == 1
    assert len(tools.calls("apt-get")) == 4


def test_without_a_cross_compiler_zig_compiles(tools, measure):
    (tools.folder / "aarch64-linux-gnu-g++").unlink()
    measure()
    assert all("c++ -target aarch64-linux-gnu.2.28" in call for call in tools.calls("zig"))
    assert tools.calls("zig")


def test_a_wheel_without_a_known_hash_is_not_fetched(tools, measure, monkeypatch):
    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda n: "3" if n == "executorch" else real(n))
    assert "no known hash of the wheels of executorch==3" in measure()
    assert tools.calls("pip3") == []


def test_a_missing_wheel_is_a_one_line_error_and_leaves_no_files(tools, measure, cache):
    (tools.folder / f"executorch=={VERSION}.whl").unlink()
    said = measure()
    assert f"cannot get executorch=={VERSION}: ERROR: no matching distribution" in said
    assert list((cache / "wheels").iterdir()) == []


@pytest.mark.parametrize(
    ("name", "body", "says"),
    [
        ("apt-get", "case $1 in indextargets) ;; *) exit 1 ;; esac", "no mirror of Debian"),
        ("dpkg-deb", 'mkdir -p "$3"', r"no usr/lib/aarch64-linux-gnu/\S+ in Debian's libc6"),
        ("apt-get", None, "no apt"),
    ],
)
def test_debian_packages_that_cannot_be_had(tools, measure, cache, name, body, says):
    tools.write(name, body) if body else (tools.folder / name).unlink()
    assert re.search(says, measure())
    assert not list(cache.glob("bundles/aarch64*"))


def test_an_architecture_without_a_bundle(tools, measure):
    tools.write("uname", "echo riscv64")
    assert "unknown architecture 'riscv64'" in measure()
