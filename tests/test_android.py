"""A real adb and a real adbd: runs, settings that come back, and a device that is unplugged."""

import json
import os
import shutil
from pathlib import Path

import phone as phone_module
import pytest
from planned import make_plan, run_plan

from workbench import store
from workbench.errors import SetupError, TargetError, UsageError
from workbench.options import MeasureOptions
from workbench.run.isa import read_isa
from workbench.run.runner import find_runner
from workbench.run.session import RunnerSession
from workbench.run.targets import open_target
from workbench.run.targets.android import MODES, RECORD, Android, find_device, list_devices
from workbench.run.targets.host import run_there
from workbench.run.targets.qemu import Qemu

pytestmark = [pytest.mark.adb, pytest.mark.timeout(1200)]

#: What the owner of the phone has set; one is not set at all.
OWN = {"low_power": "1", "stay_on_while_plugged_in": "3", "window_animation_scale": "0.5"}


@pytest.fixture(scope="module")
def plugged(tmp_path_factory):
    if reason := phone_module.missing():
        pytest.skip(reason)
    try:
        phone = phone_module.Phone(tmp_path_factory.mktemp("phone"))
        phone.wait()
    except SetupError as error:
        pytest.skip(str(error))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{phone.home}/client{os.pathsep}{os.environ['PATH']}")
        patch.setenv("ADB_SERVER_SOCKET", phone.socket)
        yield phone
    phone.end()


@pytest.fixture
def phone(plugged):
    """The phone, its settings as the owner has them."""
    for path in (plugged.home / "settings").iterdir():
        path.unlink()
    for name, value in OWN.items():
        (plugged.home / "settings" / name).write_text(value)
    yield plugged
    assert plugged.settings() == OWN


@pytest.fixture
def base(plugged):
    return str(plugged.home / "data" / "it's a $base")


def connect(base, power=""):
    return Android(phone_module.SERIAL, power=power, base=base)


def leftovers(base):
    return [path.name for path in Path(base).glob("run-*")]


def test_a_device_by_network_is_connected_to(phone):
    assert find_device(phone_module.SERIAL) == phone_module.SERIAL
    assert list_devices()[phone_module.SERIAL] == "device"


def test_a_missing_device_is_an_error_that_lists_the_others(phone):
    find_device(phone_module.SERIAL)
    with pytest.raises(TargetError, match=r"no such device.*127\.0\.0\.1:5555"):
        open_target("android:none")
    with pytest.raises(UsageError, match="unknown power mode 'bost'"):
        open_target("android", power="bost")


def test_words_and_files_survive_adb(phone, base, tmp_path):
    words = ["a  b", "it's", "$HOME", "`id`", "x;y&z|*?", 'say "no"', "\\", "ü\n\t"]
    path = tmp_path / "all bytes"
    path.write_bytes(bytes(range(256)) * 5000)
    with connect(base) as target:
        done = run_there(target, ["printf", r"%s\0", *words])
        assert done.stdout.decode() == "".join(f"{word}\0" for word in words)
        there = target.push(path)
        placed = target.place(path)
        shutil.copy(there, placed)
        target.pull(placed, tmp_path / "back")
        assert (tmp_path / "back").read_bytes() == path.read_bytes()
        assert target.describe()["model"] == "ro.product.model of a stand-in"
        assert target.platform == "android"
    assert leftovers(base) == []


def test_an_ab_run_restores_the_settings(phone, base, conv_pte, tmp_path):
    with connect(base, power="boost") as target:
        runner = find_runner(target)
        assert read_isa(runner.command).self_check == "ok"
        pte = Path(shutil.copy(conv_pte, tmp_path / "conv.pte"))
        plan = make_plan(pte, MeasureOptions(runs=8, processes=1), runner)
        during = {}
        run_dir = run_plan(
            plan, runner, tmp_path / "out", progress=lambda text, part: during.update(
                phone.settings() if part < 1 else {}
            ),
        )  # fmt: skip
    assert {**during, **MODES["boost"]} == during
    assert phone.settings() == OWN
    record = json.loads((run_dir / RECORD).read_text())
    assert record["restored"]
    assert record["before"]["low_power"] == "1"
    assert record["before"]["animator_duration_scale"] == "null"
    assert "svc power stayon true" in (phone.home / "settings.log").read_text()
    run = store.load_run(run_dir)
    assert run.platform == "android" and "-android-" in run_dir.name
    assert run.state == "complete"
    assert run.plan.target == f"android:{phone_module.SERIAL}"
    assert all(a.agree for a in run.agreements)
    assert all((run_dir / s.etdump).stat().st_size for s in run.sessions if s.traced)
    assert leftovers(base) == []


def test_settings_are_restored_after_an_error(phone, base, tmp_path):
    with connect(base, power="developer") as target:
        with pytest.raises(KeyboardInterrupt), target.prepared(tmp_path):
            assert phone.settings()["stay_on_while_plugged_in"] == "1"
            raise KeyboardInterrupt
        assert phone.settings() == OWN


def test_a_refused_setting_is_an_error(phone, base, tmp_path):
    tool = phone.home / "bin" / "settings"
    kept = tool.read_text()
    tool.write_text(kept.replace("put)", 'put) [ "$3" = low_power ] ||'))
    try:
        with (
            connect(base, power="boost") as target,
            pytest.raises(TargetError, match="setting low_power is 1, not 0"),
            target.prepared(tmp_path),
        ):
            pass
    finally:
        tool.write_text(kept)


def test_unplugged_during_a_run(phone, base, conv_pte, tmp_path, monkeypatch):
    pte = Path(shutil.copy(conv_pte, tmp_path / "conv.pte"))
    real, calls = RunnerSession.run, iter(range(30))

    def run(session, count):
        if next(calls, None) is None:
            phone.unplug()
        return real(session, count)

    with connect(base, power="boost") as target, monkeypatch.context() as patch:
        runner = find_runner(target)
        plan = make_plan(pte, MeasureOptions(runs=8, processes=1), runner)
        patch.setattr(RunnerSession, "run", run)
        with pytest.raises(TargetError, match="connection lost during a run"):
            run_plan(plan, runner, tmp_path / "out")
    (run_dir,) = store.find_runs(tmp_path / "out")
    partial = store.load_run(run_dir)
    assert partial.state == "incomplete"
    assert any(s.batches for s in partial.sessions)
    assert not json.loads((run_dir / RECORD).read_text())["restored"]
    assert phone.settings() == {**OWN, **MODES["boost"]}
    assert leftovers(base)
    with pytest.raises(TargetError):
        connect(base)

    phone.plug()
    with connect(base) as target:
        assert phone.settings() == OWN
        assert [f"{base}/{name}" for name in leftovers(base)] == [target.run_dir]
        runner = find_runner(target)
        assert run_plan(plan, runner, tmp_path / "out") == run_dir
    assert store.load_run(run_dir).state == "complete"
    assert leftovers(base) == []


class EmulatedPhone(Android):
    """The phone with an aarch64 CPU: what is run there, QEMU runs."""

    machine = "aarch64"
    emulated = True

    def __init__(self, qemu, base):
        self.qemu = qemu
        super().__init__(phone_module.SERIAL, base=base)

    def command(self, argv):
        return super().command(self.qemu.command(argv))


def test_sme2_on_an_emulated_phone(phone, base, conv_pte, tmp_path):
    try:
        qemu = Qemu("max")
    except SetupError as error:
        pytest.skip(str(error))
    pte = Path(shutil.copy(conv_pte, tmp_path / "conv.pte"))
    with EmulatedPhone(qemu, base) as target:
        runner = find_runner(target)
        assert "sme2" in read_isa(runner.command).features
        plan = make_plan(pte, MeasureOptions(toggle="sme2"), runner)
        run = store.load_run(run_plan(plan, runner, tmp_path / "out"))
    assert run.emulated
    assert {s.experiment: bool(s.masked) for s in run.sessions} == {
        "sme2_off": True,
        "sme2_on": False,
    }
