"""The doctor reports what works and how to fix what does not."""

import os

import pytest

from workbench.run.doctor import examine_machine, examine_targets


@pytest.fixture
def tools(monkeypatch, tmp_path):
    """Nothing on the PATH and in the cache but what a test writes."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "bin").mkdir()

    def write(name, body):
        path = tmp_path / "bin" / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    return write


def find(subject):
    (finding,) = [f for f in examine_targets() if f.subject == subject]
    return finding


def test_a_machine_is_described_in_full():
    found = {finding.subject: finding for finding in examine_machine()}
    for subject in ("compiler", "C++ libraries", "runner", "CPU features", "SME2"):
        assert found[subject].detail
    assert found["hiding features"].status == "ok"
    assert "--target qemu" in found
    assert all(f.fix for f in found.values() if f.status == "fail")


def test_missing_targets_are_not_failures(tools):
    findings = examine_targets()
    assert {f.status for f in findings} <= {"ok", "note"}
    assert all(f.fix for f in findings if f.status == "note")
    assert find("--target ssh:HOST").fix == "apt install openssh-client"
    assert "apt install adb" in find("--target android").fix
    assert "downloaded by pip" in find("cross compiler").detail


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


def test_an_adb_that_fails_is_a_note(tools, monkeypatch):
    tools("adb", "echo 'no permissions' >&2; exit 1")
    assert find("--target android").detail == "no permissions"
    monkeypatch.setattr("workbench.run.targets.android.ADB_TIMEOUT_S", 0.2)
    tools("adb", "while :; do :; done")
    assert "does not answer" in find("--target android").detail
