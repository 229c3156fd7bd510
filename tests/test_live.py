"""A run that is started, watched and stopped in a notebook."""

import pytest

import workbench as wb


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """Stands in for the measurement: three steps, with the manifest of a recorded run."""
    steps, run = [], wb.open_run(wb.sample_run())

    def measure(model, inputs, options, *, root, progress, watch):
        for number in range(len(steps), 3):
            watch(run.record)
            progress(f"step {number}", number / 3)
            steps.append(number)
        return run

    monkeypatch.setattr("workbench.live.measure", measure)
    return steps


def test_it_shows_latencies_while_it_runs_and_the_verdict_at_its_end(measured, tmp_path):
    shown = wb.LiveRun(tmp_path / "x.pte", root=tmp_path)
    assert shown.run is None
    shown.start()
    shown.wait(60)
    assert measured == [0, 1, 2]
    assert bytes(shown.picture.value[:4]) == b"\x89PNG"
    assert shown.status.value == f"done: {shown.run.compare().text}"
    assert not shown.start_button.disabled and shown.stop_button.disabled


@pytest.mark.whole
def test_a_stopped_run_resumes(measured, tmp_path):
    shown = wb.LiveRun(tmp_path / "x.pte", root=tmp_path)
    shown.stop()
    shown._measure()
    assert "Start resumes" in shown.status.value
    assert len(measured) < 3
    assert shown.run is None
    shown.start()
    shown.wait(60)
    assert measured == [0, 1, 2]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (wb.open_run, "error: nowhere: "),
        (lambda path: 1 / 0, "error: ZeroDivisionError: division by zero"),
        (lambda path: int("x"), "error: ValueError: invalid literal"),
    ],
)
def test_every_failure_is_one_line(monkeypatch, tmp_path, error, status):
    monkeypatch.setattr("workbench.live.measure", lambda *_, **__: error("nowhere"))
    shown = wb.LiveRun(tmp_path / "x.pte", root=tmp_path)
    shown.start()
    shown.wait(60)
    assert shown.status.value.startswith(status) and "\n" not in shown.status.value
    assert not shown.start_button.disabled and shown.stop_button.disabled


@pytest.mark.whole
def test_the_latencies_of_the_run_itself_are_drawn_not_those_of_another(conv_pte, tmp_path):
    options = wb.MeasureOptions(
        toggle="none", runs=2, processes=1, warmup=1, evidence=False, cold_start=False
    )
    other = wb.measure(conv_pte, options=options, root=tmp_path)
    drawn, shown = [], wb.LiveRun(conv_pte, options=options, root=tmp_path)
    shown._draw = lambda record: drawn.append((record.started, len(record.sessions)))
    shown.start()
    shown.wait(120)
    assert shown.run.path != other.path and drawn[0][1] == 0
    assert {started for started, _ in drawn} == {shown.run.record.started}


def test_without_a_front_end_a_live_run_is_a_sentence(tmp_path, capsys):
    wb.LiveRun(tmp_path / "x.pte", root=tmp_path)._ipython_display_()
    assert "Open this notebook in Jupyter" in capsys.readouterr().out


def test_a_saved_notebook_keeps_how_a_live_run_ended(measured, tmp_path, monkeypatch):
    """What is displayed first, and what replaces it."""
    monkeypatch.setenv("WORKBENCH_WIDGETS", "1")
    kept = []

    class Displayed:
        def update(self, data, raw):
            kept.append(data)

    def display(data, raw, display_id=False):
        kept.append(data)
        return Displayed()

    monkeypatch.setattr("workbench.explorer.page.display", display)
    shown = wb.LiveRun(tmp_path / "x.pte", root=tmp_path)
    shown._ipython_display_()
    shown.start()
    shown.wait(60)
    first, widget, last = kept
    assert (
        "not started" in first["text/plain"]
        and "application/vnd.jupyter.widget-view+json" in widget
    )
    assert shown.run.compare().text.partition(",")[0] in last["text/plain"]
    assert "data:image/png" in last["text/html"] and shown._still in last["text/html"]
