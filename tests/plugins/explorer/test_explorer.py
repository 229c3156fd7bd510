"""Controls with a live front end, and what is shown without one."""

import html
import json
from types import SimpleNamespace

import pytest
from jupyter_client.manager import start_new_kernel
from manifests import write_manifest
from nbformat.v4 import new_code_cell, new_notebook, new_output
from recorded import plain, recorded

import workbench as wb
from workbench.pages import Chart

SAMPLES = wb.sample_run().parents[2]


@pytest.fixture
def front_end(monkeypatch):
    """A live front end."""
    monkeypatch.setenv("WORKBENCH_WIDGETS", "1")


@pytest.fixture
def seen(front_end, monkeypatch):
    """What views draw in a live front end."""
    seen = []
    monkeypatch.setattr("workbench.plots.widgets.display", seen.append)
    return seen


def name_explorer():
    """What `explore` returns here: a widget, or a page."""
    return type(wb.explore(recorded("toy_cnn"))).__name__


def list_choices(picker):
    """What can be picked, by its label."""
    return dict(picker.children[0].children[0].options)


# Whether widgets work.


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


# Runs and measurements to pick from.


def keep_run(folder, **changes):
    manifest = json.loads((wb.sample_run() / "manifest.json").read_text())
    write_manifest(manifest | changes, folder)


def test_all_runs_are_found_the_samples_last(seen, tmp_path):
    for name in ("linux", "x-fp32-linux-20261122-1433"):
        keep_run(tmp_path / "out_x" / "runs" / name)
    runs = list_choices(wb.pick_run(folder=tmp_path))
    assert list(runs)[:2] == ["mobilenet_v3_small, linux (2)", "mobilenet_v3_small, linux"]
    samples = list(runs.values())[2:]
    assert samples[0] == wb.sample_run()
    assert len(samples) > 2 and all(path.is_relative_to(SAMPLES) for path in samples)


@pytest.mark.parametrize("kernel", [".", "notebooks", "scripts"])
def test_the_users_runs_come_first_wherever_the_kernel_stands(tmp_path, monkeypatch, kernel, seen):
    """`workbench lab` starts kernels in notebooks/, a terminal stands above it."""
    days = iter(range(1, 9))
    for place in ("", "notebooks", "other"):
        started = f"2026-01-0{next(days)}T00:00:00"
        keep_run(tmp_path / place / "out_mine" / "runs" / "linux", started=started)
    (tmp_path / "scripts").mkdir()
    monkeypatch.chdir(tmp_path / kernel)
    newest, oldest, *samples = list_choices(wb.pick_run()).items()
    assert [path.parents[2] for _, path in (newest, oldest)] == [tmp_path / "notebooks", tmp_path]
    assert newest[0] != oldest[0] and all(
        n.startswith("mobilenet_v3_small, linux") for n, _ in (newest, oldest)
    )
    assert all("(recorded)" in name for name, _ in samples)
    first = next(iter(list_choices(wb.pick_measurements())))
    assert first.startswith("mobilenet_v3_small, linux")


def test_measurements_are_those_that_can_be_compared(seen, tmp_path):
    keep_run(tmp_path / "runs" / "whole")
    keep_run(tmp_path / "runs" / "half", state="incomplete")
    keep_run(tmp_path / "runs" / "qemu", emulated=True)
    here = {label: name for label, name in list_choices(wb.pick_measurements(tmp_path)).items()
            if name.startswith(str(tmp_path))}  # fmt: skip
    folder = tmp_path / "runs" / "whole"
    assert list(here.values()) == [f"{folder}:avx512_off:1", f"{folder}:avx512_on:1"]
    assert "linux" in list(here)[1] and list(here)[1].endswith(": avx512_on, 1 thread")


@pytest.fixture
def lists(seen):
    """The lists of recorded measurements, and of what may differ."""
    return wb.pick_measurements(SAMPLES).children[0].children


def pick_measured(menu, sample, *ends):
    """Pick measurements of a sample by the ends of their names."""
    names = [name for name in menu.options.values() if f"out_{sample}/" in name]
    menu.value = [next(name for name in names if name.endswith(end)) for end in ends]


@pytest.mark.whole
def test_two_are_compared_under_what_tells_them_apart(lists, seen):
    ab = recorded().compare()
    pick_measured(lists[0], "mobilenet_v3_small", ":avx512_off:1", ":avx512_on:1")
    expected = f"avx512_on against avx512_off: {ab.verdict.speedup:.2f}x faster"
    assert expected in str(seen[-1]) and type(seen[-1]).__name__ == "Explorer"


@pytest.mark.whole
def test_one_is_too_few_and_more_than_two_are_a_table(lists, seen):
    pick_measured(lists[0], "mobilenet_v3_small_int8", ":sse2:1", ":sse41:1", ":avx:1")
    assert "| category | sse2 | sse41 | avx |" in str(seen[-1])
    pick_measured(lists[0], "mobilenet_v3_small_int8", ":sse2:1")
    assert "Pick two" in str(seen[-1])


@pytest.mark.whole
def test_what_differs_has_to_be_allowed(lists, seen):
    pick_measured(lists[0], "unet_small", ":avx512_on:1", ":avx512_on:2")
    assert 'role="alert"' in seen[-1].data and "may differ" in seen[-1].data
    lists[1].value = ["threads"]
    assert type(seen[-1]).__name__ == "Explorer"


@pytest.mark.whole
def test_without_a_front_end_the_first_two_are_compared(monkeypatch):
    shown = []
    monkeypatch.setattr("workbench.plots.pickers.display", shown.append)
    wb.pick_measurements(SAMPLES)._ipython_display_()
    assert "x faster" in str(shown[0]) and "<iframe" in shown[0]._repr_html_()


def test_a_picked_run_is_explored_and_drives_other_cells(seen):
    picked = wb.pick_run(wb.sample_run("vit_tiny"), view="categories")
    other = picked.draw(lambda run: run.model)
    states = []
    other.status.observe(lambda change: states.append(change["new"]), "value")
    (menu,) = picked.children[0].children
    menu.value = wb.sample_run("toy_cnn")
    explorers = [each for each in seen if type(each).__name__ == "Explorer"]
    assert [json.loads(w.data)["head"]["model"] for w in explorers] == ["vit_tiny", "toy_cnn"]
    assert all(widget.view == "categories" for widget in explorers)
    assert [text for text in seen if isinstance(text, str)] == ["vit_tiny", "toy_cnn"]
    assert "reading toy_cnn" in states[0] and states[-1] == ""


def test_a_recorded_run_is_listed_once_under_its_name(front_end):
    (menu,) = wb.pick_run(wb.sample_run("toy_cnn"), folder="nowhere").children[0].children
    assert menu.label == "toy_cnn, qemu-aarch64 (recorded)"
    assert list(menu.options).count(menu.label) == 1 and not any("/" in n for n in menu.options)


def test_a_run_that_cannot_be_read_is_refused_in_one_line(seen, tmp_path):
    keep_run(tmp_path / "runs" / "whole")
    picked = wb.pick_run(folder=tmp_path)
    before = picked.selected
    (menu,) = picked.children[0].children
    menu.options = {**menu.options, "no run": tmp_path}
    menu.value = tmp_path
    assert 'role="alert"' in seen[-1].data and picked.selected is before


def test_the_operators_that_are_selected_in_the_explorer_drive_other_cells(seen):
    run = recorded()
    explorer = wb.explore(run)
    explorer.draw(len)
    keys = list(run.subject.operators["key"][3:5])
    explorer.set_state({"selected": keys})  # as the front end does
    assert list(explorer.selected["key"]) == keys == explorer.get_state()["selected"]
    explorer.set_state({"selected": []})
    assert seen == [len(run.subject.operators), 2, len(run.subject.operators)]


# What a saved notebook keeps.


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


def test_what_a_view_shows_and_keeps_is_drawn_once_and_kept_as_it_is_now(seen, monkeypatch):
    drawn, kept = [], []
    monkeypatch.setattr(Chart, "to_svg", lambda chart: drawn.append(chart) or "svg")
    monkeypatch.setattr(
        "workbench.plots.widgets.display",
        lambda data, **_: SimpleNamespace(update=lambda data, raw: kept.append(data)),
    )
    picked = wb.pick({"first": "avx512_off", "last": "avx512_on"}, len)
    view = picked.draw(lambda name: wb.plot_categories(recorded()[name]))
    view._ipython_display_()
    assert len(drawn) == 1
    picked.children[0].children[0].value = "last"
    assert len(drawn) == 2 and "avx512_on" in kept[-1]["text/html"]


def test_an_explorer_without_a_front_end_says_its_answer_as_text():
    assert repr(wb.explore(recorded())) == recorded().compare().text
    assert repr(wb.explore(recorded("toy_cnn"))).startswith("toy_cnn")
