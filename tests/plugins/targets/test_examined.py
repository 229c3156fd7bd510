"""The doctor says which other machines can be reached, and how to reach more."""

import os

import pytest
from devices import Tools

import workbench as wb
from workbench.run import doctor


@pytest.fixture
def tools(monkeypatch, tmp_path):
    """Nothing on the PATH and in the cache but what a test writes; no runner can be compiled."""
    tools = Tools(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(tools.folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", "/bin/false")
    monkeypatch.setattr(doctor, "find_missing", lambda probed: {})
    return tools.write


def find(subject):
    (check,) = [check for check in wb.examine_machine() if check.subject == subject]
    return check


def test_without_tools_there_is_a_note_that_says_what_to_install(tools):
    assert find("--target ssh:HOST").fix == "apt install openssh-client"
    assert "apt install adb" in find("--target android").fix


def test_an_old_qemu_is_not_enough(tools):
    tools("qemu-aarch64", "echo qemu-aarch64 version 7.2.0")
    assert find("--target qemu").status == "note"
    assert "10.1" in find("--target qemu").detail
    tools("qemu-aarch64", "echo qemu-aarch64 version 11.0.2")
    assert "QEMU 11.0.2" in find("--target qemu").detail


def test_without_qemu_a_debian_machine_downloads_it(tools):
    tools("apt-get", "exit 1")
    tools("dpkg-deb", "exit 1")
    if os.uname().sysname == "Linux":
        assert find("--target qemu").detail == "downloaded from Debian (signed) on first use"


def test_devices_with_their_features(tools):
    tools(
        "adb",
        """
case "$*" in
  version) echo 'Version 34.0.5-debian' ;;
  devices) printf 'List of devices attached\\nR5CX1\\tdevice\\nR5CX2\\tunauthorized\\n' ;;
  *shell*) printf 'aarch64\\nFeatures\\t: fp asimd asimddp i8mm sme sme2 xyz\\n' ;;
esac""",
    )
    assert find("--target android:R5CX1").detail == (
        "adb 34.0.5-debian, aarch64: sme2, sme, i8mm, asimddp"
    )
    assert find("--target android:R5CX2").status == "note"


def test_an_adb_that_fails_is_a_note(tools, short_waits):
    tools("adb", "echo 'no permissions' >&2; exit 1")
    assert find("--target android").detail == "no permissions"
    tools("adb", "exec sleep 30")
    assert find("--target android").detail == "no answer in 0.2 s"
