"""The explorer in a live front end, and what is shown without one."""

import html
from types import SimpleNamespace

import pytest
from jupyter_client.manager import start_new_kernel
from nbformat.v4 import new_code_cell, new_notebook, new_output
from recorded import plain, recorded

import workbench as wb


def name_explorer():
    """What `explore` returns here: a widget, or a page."""
    return type(wb.explore(recorded("toy_cnn"))).__name__


@pytest.mark.parametrize(("forced", "kind"), [("0", "Page"), ("1", "Explorer")])
def test_the_environment_decides(monkeypatch, forced, kind):
    monkeypatch.setenv("WORKBENCH_WIDGETS", forced)
    assert name_explorer() == kind


def test_only_a_front_end_that_accepts_requests_gets_widgets(monkeypatch):
    """Papermill and nbconvert execute cells with ``allow_stdin=False``, front ends do not."""
    monkeypatch.delenv("WORKBENCH_WIDGETS", raising=False)
    assert name_explorer() == "Page"
    manager, client = start_new_kernel(kernel_name="python3")
    seen = []
    ask = "import workbench as wb; run = wb.sample_run('toy_cnn'); "
    ask += "print(type(wb.explore(run)).__name__)"
    try:
        for answers in (True, False):
            client.execute_interactive(
                ask,
                allow_stdin=answers,
                timeout=120,
                output_hook=lambda m: seen.append(m["content"].get("text", "").strip()),
                stdin_hook=lambda _: None,
            )
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert [text for text in seen if text] == ["Explorer", "Page"]


def test_a_view_that_a_control_redraws_has_a_front_end(monkeypatch):
    """The message of a moved control has no ``allow_stdin``: the explorer stays a widget."""
    monkeypatch.delenv("WORKBENCH_WIDGETS", raising=False)
    kernel = SimpleNamespace(get_parent=lambda: {"msg_type": "comm_msg", "content": {}})
    monkeypatch.setattr("workbench.progress._kernel", lambda: kernel)
    assert name_explorer() == "Explorer"


def test_the_operators_that_are_selected_in_the_explorer_drive_other_cells(seen):
    run = recorded()
    explorer = wb.explore(run)
    explorer.draw(len)
    keys = list(run.subject.operators["key"][3:5])
    explorer.set_state({"selected": keys})  # as the front end does
    assert list(explorer.selected["key"]) == keys == explorer.get_state()["selected"]
    explorer.set_state({"selected": []})
    assert seen == [len(run.subject.operators), 2, len(run.subject.operators)]


def test_a_saved_explorer_shows_its_answer_without_a_kernel(front_end, monkeypatch):
    outputs, run = [], recorded()
    monkeypatch.setattr("workbench.plots.widgets.display", lambda data, **_: outputs.append(data))
    explorer = wb.explore(run)
    explorer._ipython_display_()
    kept, widget = outputs
    assert kept["text/plain"] == run.compare().text
    assert "application/vnd.jupyter.widget-view+json" in widget
    cells = [new_output("display_data", data=data) for data in outputs]
    notebook = new_notebook(cells=[new_code_cell("wb.explore(run)", outputs=cells)])
    nbconvert = pytest.importorskip("nbconvert", reason="comes with JupyterLab")
    page = nbconvert.HTMLExporter().from_notebook_node(notebook)[0]
    shown = plain(html.unescape(page))
    assert run.compare().text in shown and "GEMM 60 %" in shown
    assert plain(run.findings["cause"].iloc[0])[1:] in shown
    assert "Explorer object" not in shown and explorer.still in shown
    explorer.close()


def test_an_explorer_without_a_front_end_says_its_answer_as_text():
    assert repr(wb.explore(recorded())) == recorded().compare().text
    assert repr(wb.explore(recorded("toy_cnn"))).startswith("toy_cnn")
