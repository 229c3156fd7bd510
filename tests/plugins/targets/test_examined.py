"""The doctor says which other machines can be reached, and how to reach more."""

import os

from devices import find_check


def test_without_tools_there_is_a_note_that_says_what_to_install(tools):
    assert find_check("--target ssh:HOST").fix == "apt install openssh-client"
    assert "apt install adb" in find_check("--target android").fix


def test_an_old_qemu_is_not_enough(tools):
    tools("qemu-aarch64", "echo qemu-aarch64 version 7.2.0")
    assert find_check("--target qemu").status == "note"
    assert "10.1" in find_check("--target qemu").detail
    tools("qemu-aarch64", "echo qemu-aarch64 version 11.0.2")
    assert "QEMU 11.0.2" in find_check("--target qemu").detail


def test_without_qemu_a_debian_machine_downloads_it(tools):
    tools("apt-get", "exit 1")
    tools("dpkg-deb", "exit 1")
    if os.uname().sysname == "Linux":
        assert find_check("--target qemu").detail == "downloaded from Debian (signed) on first use"


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
    assert find_check("--target android:R5CX1").detail == (
        "adb 34.0.5-debian, aarch64: sme2, sme, i8mm, asimddp"
    )
    assert find_check("--target android:R5CX2").status == "note"


def test_an_adb_that_fails_is_a_note(tools, short_waits):
    tools("adb", "echo 'no permissions' >&2; exit 1")
    assert find_check("--target android").detail == "no permissions"
    tools("adb", "exec sleep 30")
    assert find_check("--target android").detail == "no answer in 0.2 s"
