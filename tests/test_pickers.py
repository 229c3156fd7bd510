"""Runs and measurements to pick from, and what other cells draw of them."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from manifests import write_manifest
from needed import needs
from recorded import recorded

import workbench as wb
from workbench.pages import Chart

SAMPLES = wb.sample_run().parents[2]


def list_choices(picker):
    """What can be picked, by its label."""
    return dict(picker.children[0].children[0].options)


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


@needs("explorer")
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


@needs("explorer")
@pytest.mark.whole
def test_what_differs_has_to_be_allowed(lists, seen):
    pick_measured(lists[0], "unet_small", ":avx512_on:1", ":avx512_on:2")
    assert 'role="alert"' in seen[-1].data and "may differ" in seen[-1].data
    lists[1].value = ["threads"]
    assert type(seen[-1]).__name__ == "Explorer"


@needs("explorer")
@pytest.mark.whole
def test_without_a_front_end_the_first_two_are_compared(monkeypatch):
    shown = []
    monkeypatch.setattr("workbench.plots.pickers.display", shown.append)
    wb.pick_measurements(SAMPLES)._ipython_display_()
    assert "x faster" in str(shown[0]) and "<iframe" in shown[0]._repr_html_()


@needs("explorer")
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


def test_without_the_explorer_a_run_is_its_overview():
    code = (
        "import workbench as wb; run = wb.open_run(wb.sample_run())\n"
        "for each in (wb.explore(run), wb.pick_run(run.path, view='model').draw(wb.explore)):\n"
        "    page = each._repr_html_()\n"
        "    print(len(each.selected), repr(each) == run.compare().text, '<iframe' in page)\n"
        "    assert 'GEMM' in page"
    )
    environment = {**os.environ, "WORKBENCH_PLUGINS": "-explorer"}
    line = [sys.executable, "-c", code]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=280)
    count = len(recorded().subject.operators)
    assert done.stdout.splitlines() == 2 * [f"{count} True False"], done.stderr
