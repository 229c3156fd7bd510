"""Downloads for other machines: caching, mirrors and error messages."""

import zipfile

import pytest

from workbench.errors import SetupError, UsageError
from workbench.run import build, bundle
from workbench.run.build import ARCHITECTURES, fetch_wheel
from workbench.run.bundle import fetch_debian, find_cross_compiler, make_bundle
from workbench.store import cache_folder, cached


@pytest.fixture(autouse=True)
def tools(monkeypatch, tmp_path):
    """Nothing on the PATH and in the cache but what a test writes; ``$calls`` counts."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    (tmp_path / "bin").mkdir()

    def write(name, body):
        path = tmp_path / "bin" / name
        path.write_text(f'#!/bin/sh\necho "$@" >> "{tmp_path}/{name}.calls"\n{body}\n')
        path.chmod(0o755)

    write.calls = lambda name: (tmp_path / f"{name}.calls").read_text().splitlines()
    return write


@pytest.fixture
def pip(tools, tmp_path, monkeypatch):
    """A pip that has one wheel."""
    with zipfile.ZipFile(tmp_path / "thing-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("thing/data.txt", "data")
    tools(
        "pip3",
        f'for word in "$@"; do [ "$last" = --dest ] && dest=$word; last=$word; done\n'
        f'grep -q "^thing==1 --hash=sha256:00$" "$last" ||\n'
        f'{{ echo "ERROR: no matching distribution" >&2; exit 1; }}\n'
        f'cp "{tmp_path}/thing-1-py3-none-any.whl" "$dest"',
    )
    pins = tmp_path / "wheels.txt"
    pins.write_text("# x\nthing==1 \\\n--hash=sha256:00\nthing==2 \\\n--hash=sha256:11\n")
    monkeypatch.setattr(build, "WHEELS", pins)
    monkeypatch.setattr(build.importlib.util, "find_spec", lambda name: None)
    return tools


def test_a_wheel_is_downloaded_once(pip):
    folder = fetch_wheel("thing", "1", "other_platform")
    assert (folder / "thing" / "data.txt").read_text() == "data"
    assert fetch_wheel("thing", "1", "other_platform") == folder
    (call,) = pip.calls("pip3")
    assert "--platform other_platform" in call
    assert "--only-binary=:all:" in call
    assert "--require-hashes" in call
    assert fetch_wheel("thing", "1") != folder


def test_a_wheel_without_a_known_hash_is_not_fetched(pip):
    with pytest.raises(SetupError, match=r"no known hash of the wheels of thing==3"):
        fetch_wheel("thing", "3")
    assert not (cache_folder().parents[1] / "pip3.calls").exists()


def test_a_missing_wheel_is_a_one_line_error_and_leaves_no_files(pip):
    with pytest.raises(SetupError, match=r"cannot get thing==2: ERROR: no matching distribution"):
        fetch_wheel("thing", "2")
    assert list((cache_folder() / "wheels").iterdir()) == []


def test_debian_packages_come_from_the_first_mirror_that_has_them(tools):
    tools(
        "apt-get",
        """
case "$*" in
  indextargets*) printf 'http://one/ stable main\\nhttp://two/ stable main\\n'
                 printf 'http://three/ stable-security main\\n' ;;
  *update) grep -q http://two/ etc/mirror.sources || { echo 'E: no such suite' >&2; exit 100; } ;;
  *download*) touch a_1_arm64.deb b_2_arm64.deb ;;
esac""",
    )
    tools("dpkg-deb", 'mkdir -p "$3/usr/lib"; echo "$2" > "$3/usr/lib/x.so"')
    folder = fetch_debian(["a", "b"], ["usr/lib/x.so"], architecture="arm64", suite="trixie")
    assert [path.name for path in folder.iterdir()] == ["x.so"]
    assert fetch_debian(["a", "b"], ["usr/lib/x.so"], architecture="arm64") == folder
    calls = [call for call in tools.calls("apt-get") if "indextargets" not in call]
    assert len(calls) == 3
    assert all("APT::Architecture=arm64" in call for call in calls)
    assert not any("three" in call for call in calls)
    with pytest.raises(SetupError, match=r"no usr/lib/y\.so in Debian's a, b"):
        fetch_debian(["a", "b"], ["usr/lib/y.so"], architecture="arm64")


def test_no_mirror_has_the_package(tools):
    tools("apt-get", "case $1 in indextargets) ;; *) exit 1 ;; esac")
    tools("dpkg-deb", "exit 1")
    with pytest.raises(SetupError, match="no mirror of Debian"):
        fetch_debian(["a"], ["x"], architecture="arm64")


def test_without_apt(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SetupError, match="no apt"):
        fetch_debian(["a"], ["x"], architecture="arm64")


def test_an_incomplete_cache_entry_is_deleted():
    def make(folder):
        folder.mkdir()
        (folder / "half").touch()
        raise SetupError("no more")

    with pytest.raises(SetupError, match="no more"):
        cached("things/one", make)
    assert not (cache_folder() / "things" / "one").exists()
    assert cached("things/one", lambda folder: folder.mkdir()).is_dir()


def test_concurrent_writers_share_the_first_cache_entry():
    def make(folder):
        folder.mkdir()
        (folder / "mine").touch()
        if not (cache_folder() / "things" / "one").exists():
            cached("things/one", make_other)

    def make_other(folder):
        folder.mkdir()
        (folder / "theirs").touch()

    assert [path.name for path in cached("things/one", make).iterdir()] == ["theirs"]


def test_an_installed_cross_compiler_is_preferred(tools, monkeypatch):
    tools("aarch64-linux-gnu-g++", "")
    (command,) = find_cross_compiler(ARCHITECTURES["aarch64"])
    assert command.endswith("/aarch64-linux-gnu-g++")

    def fetch_zig(package, version):
        path = cache_folder() / "ziglang"
        path.mkdir(parents=True)
        (path / "zig").touch()
        return cache_folder()

    monkeypatch.setattr(bundle.shutil, "which", lambda name: None)
    monkeypatch.setattr(build, "fetch_wheel", fetch_zig)
    command = find_cross_compiler(ARCHITECTURES["aarch64"])
    assert command[1:] == ["c++", "-target", "aarch64-linux-gnu.2.28"]


def test_an_architecture_without_a_bundle():
    with pytest.raises(UsageError, match="unknown architecture 'riscv64'"):
        make_bundle("riscv64")
