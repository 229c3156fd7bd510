"""A program in a live notebook has a button that measures it."""

from types import SimpleNamespace

import pytest
import torch

import workbench as wb
from workbench.plugins.measure_button.program_map import ProgramMap


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return wb.export_model(
        torch.nn.Conv2d(3, 8, 3), torch.randn(1, 3, 16, 16), root=tmp_path_factory.mktemp("conv")
    )


@pytest.fixture
def displayed(monkeypatch):
    """What cells display."""
    shown = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    return shown


@pytest.mark.parametrize(("live", "kind"), [("1", ProgramMap), ("0", type(wb.show("text")))])
def test_the_button_is_there_where_a_front_end_is_live(program, displayed, monkeypatch, live, kind):
    monkeypatch.setenv("WORKBENCH_WIDGETS", live)
    program._ipython_display_()
    (shown,) = displayed
    assert isinstance(shown, kind)
    assert "Conv2d" in str(shown.kept if live == "1" else shown)


@pytest.mark.cases
def test_a_program_is_measured_by_its_button(program, monkeypatch):
    monkeypatch.setenv("WORKBENCH_WIDGETS", "1")
    shown = ProgramMap(program)
    assert shown.run is None
    shown.button.click()
    assert shown.run.record.plan.sha256 == program.sha256
    assert shown.button.description == "Measure again"
    assert all(words in str(shown.kept) for words in ("quality", "Conv2d"))


def test_what_stops_a_measurement_takes_the_place_of_the_run(program, monkeypatch):
    """In IPython, the output of a widget shows what is raised in it, and lets nothing through."""
    monkeypatch.setenv("WORKBENCH_WIDGETS", "1")
    shell = SimpleNamespace(showtraceback=lambda *_, **__: None)
    monkeypatch.setattr("ipywidgets.widgets.widget_output.get_ipython", lambda: shell)

    def refuse(_):
        raise wb.WorkbenchError("no runner")

    monkeypatch.setattr("workbench.plugins.measure_button.program_map.profile", refuse)
    shown = ProgramMap(program)
    shown.button.click()
    assert "Not measured: no runner" in str(shown.kept)
    assert not shown.button.disabled
