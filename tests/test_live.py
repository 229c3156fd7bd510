"""A run that is started, watched and stopped."""

import pytest

import workbench as wb
from workbench import live
from workbench.errors import RunnerError, StoreError
from workbench.store import load_run, save_run


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """Stands in for the measurement: three steps, with the manifest of a recorded run."""
    steps, run = [], load_run(wb.sample_run())

    def measure(pte, options, *, root, progress):
        folder = tmp_path / "runs" / "linux"
        folder.mkdir(parents=True, exist_ok=True)
        save_run(run, folder)
        for number in range(len(steps), 3):
            progress(f"step {number}", number / 3)
            steps.append(number)
        return wb.sample_run()

    monkeypatch.setattr(live, "measure_program", measure)
    return steps


def test_it_shows_latencies_while_it_runs_and_the_verdict_at_its_end(measured, tmp_path):
    shown = wb.LiveRun(tmp_path / "x.pte", root=tmp_path)
    with pytest.raises(StoreError, match="has not finished"):
        _ = shown.analysis
    shown.start()
    shown.wait(60)
    assert measured == [0, 1, 2]
    assert bytes(shown.picture.value[:4]) == b"\x89PNG"
    assert shown.status.value == f"done: {shown.analysis.comparisons[0].text}"
    assert not shown.start_button.disabled and shown.stop_button.disabled


def test_a_stopped_run_goes_on_where_it_was(measured, tmp_path):
    shown = wb.LiveRun(tmp_path / "x.pte", root=tmp_path)
    shown.stop()
    shown._measure()
    assert "goes on" in shown.status.value
    assert len(measured) < 3
    assert shown.run_dir is None
    shown.start()
    shown.wait(60)
    assert measured == [0, 1, 2]


def test_a_failure_is_one_line(monkeypatch, tmp_path):
    def fail(pte, options, *, root, progress):
        raise RunnerError("it broke", kind="check")

    monkeypatch.setattr(live, "measure_program", fail)
    shown = wb.LiveRun(tmp_path / "x.pte", root=tmp_path)
    shown.start()
    shown.wait(60)
    assert shown.status.value.startswith("error: it broke")


def test_a_model_is_exported_when_the_run_is_started(measured, monkeypatch, tmp_path):
    exported = []
    monkeypatch.setattr(live, "export_model", lambda m: exported.append(m) or tmp_path / "m.pte")
    shown = wb.LiveRun("m", root=tmp_path)
    assert exported == []
    shown.start()
    shown.wait(60)
    assert exported == ["m"]
    assert shown.run_dir == wb.sample_run()
