"""A real adb and a real adbd: runs, settings that come back, and a device that is unplugged."""

import os
import shutil
import subprocess
from pathlib import Path

import phone as phone_module
import pytest
from recorded import find_interrupted

import workbench as wb

pytestmark = [pytest.mark.adb, pytest.mark.timeout(1200)]

TARGET = f"android:{phone_module.SERIAL}"
#: What the owner of the phone has set; one is not set at all.
OWN = {"low_power": "1", "stay_on_while_plugged_in": "3", "window_animation_scale": "0.5"}
SCALES = ("window_animation_scale", "transition_animation_scale", "animator_duration_scale")
BOOST = {"low_power": "0", "stay_on_while_plugged_in": "15", **dict.fromkeys(SCALES, "0")}


@pytest.fixture(scope="module")
def plugged(tmp_path_factory):
    if reason := phone_module.missing():
        pytest.skip(reason)
    try:
        phone = phone_module.Phone(tmp_path_factory.mktemp("phone"))
        phone.wait()
    except wb.WorkbenchError as error:  # no packages, or no namespaces here
        pytest.skip(str(error))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{phone.home}/client{os.pathsep}{os.environ['PATH']}")
        patch.setenv("ADB_SERVER_SOCKET", phone.socket)
        phone_module.use_folder(patch, str(phone.home / "data" / "it's a $base"))
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
def measure(conv_pte, tmp_path):
    """Measure on the phone; the program's name is one that a shell could trip over."""
    pte = Path(shutil.copy(conv_pte, tmp_path / "it's a $model.pte"))

    def run(power="boost", target=TARGET, progress=lambda text, fraction: None, **options):
        options = {"runs": 8, "processes": 1, **options}
        options = wb.MeasureOptions(target=target, power=power, **options)
        return wb.measure(pte, options=options, root=tmp_path / "out", progress=progress)

    return run


def leftovers(phone):
    return [path.name for path in (phone.home / "data").glob("**/run-*")]


def test_a_missing_device_is_an_error_that_lists_the_others(phone, measure):
    subprocess.run(["adb", "connect", phone_module.SERIAL], check=True)
    with pytest.raises(wb.WorkbenchError, match=r"no such device.*127\.0\.0\.1:5555"):
        measure(target="android:none")
    with pytest.raises(wb.WorkbenchError, match="unknown power mode 'bost'"):
        measure(power="bost")


def test_an_ab_run_restores_the_settings(phone, measure):
    during = {}
    run = measure(progress=lambda text, part: during.update(phone.settings() if part < 1 else {}))
    assert {**during, **BOOST} == during
    assert phone.settings() == OWN
    assert "svc power stayon true" in (phone.home / "settings.log").read_text()
    record = run.record
    assert record.platform == "android" and "-android-" in run.path.name
    assert record.host["model"] == "ro.product.model of a stand-in"
    assert record.state == "complete"
    assert record.plan.target == TARGET
    assert all(agreement.agree for agreement in record.agreements)
    assert all((run.path / s.etdump).stat().st_size for s in record.sessions if s.traced)
    assert leftovers(phone) == []


def test_settings_are_restored_after_an_error(phone, measure):
    def interrupt(text, fraction):
        if "process" in text:
            assert phone.settings()["stay_on_while_plugged_in"] == "1"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure("developer", progress=interrupt)
    assert phone.settings() == OWN


def test_a_refused_setting_is_an_error(phone, measure):
    tool = phone.home / "bin" / "settings"
    kept = tool.read_text()
    tool.write_text(kept.replace("put)", 'put) [ "$3" = low_power ] ||'))
    try:
        with pytest.raises(wb.WorkbenchError, match="setting low_power is 1, not 0"):
            measure()
    finally:
        tool.write_text(kept)


def test_unplugged_during_a_run(phone, measure, tmp_path):
    def unplug(text, fraction):
        if "process 2" in text:
            phone.unplug()

    with pytest.raises(wb.WorkbenchError, match="connection lost during a run"):
        measure(progress=unplug, processes=2)
    manifest = find_interrupted(tmp_path / "out")
    assert phone.settings() == {**OWN, **BOOST}
    assert (lost := leftovers(phone))
    with pytest.raises(wb.WorkbenchError, match="android"):
        measure(processes=2)

    phone.plug()
    settings = []
    run = measure(progress=lambda text, fraction: settings.append(phone.settings()), processes=2)
    assert run.path == manifest.parent
    assert run.record.state == "complete"
    assert phone.settings() == OWN
    assert leftovers(phone) == lost, "it is deleted after two days"


@pytest.mark.cases
def test_sme2_on_an_emulated_phone(phone, measure, monkeypatch):
    try:
        phone_module.emulate(monkeypatch)
    except wb.WorkbenchError as error:  # QEMU cannot be downloaded
        pytest.skip(str(error))
    run = measure("", toggle="sme2", runs=2, processes=2, cold_start=False)
    assert run.record.emulated
    assert {s.experiment: bool(s.masked) for s in run.record.sessions} == {
        "sme2_off": True,
        "sme2_on": False,
    }
