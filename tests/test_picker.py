"""Runs and measurements to pick from, and how what was picked compares."""

import importlib
from dataclasses import replace

import pytest

import workbench as wb
from workbench.datasets import SAMPLES
from workbench.errors import ComparisonError
from workbench.explorer.widgets import compare_picked, list_measurements
from workbench.plots.tables import Sheet
from workbench.store import load_run, save_run

# The package's name for it is the function.
explore = importlib.import_module("workbench.explorer.widgets")


def keep_run(folder, **changes):
    folder.mkdir(parents=True)
    save_run(replace(load_run(wb.sample_run()), **changes), folder)


def test_all_runs_are_found_the_samples_last(tmp_path):
    for name in ("linux", "linux-2"):
        keep_run(tmp_path / "out_x" / "runs" / name)
    found = wb.list_runs(tmp_path)
    assert set(list(found)[:2]) == {"x, linux", "x, linux-2"}
    samples = list(found.values())[2:]
    assert samples[0] == wb.sample_run()
    assert len(samples) > 2 and all(path.is_relative_to(SAMPLES) for path in samples)


def test_measurements_are_those_that_can_be_compared(tmp_path):
    keep_run(tmp_path / "runs" / "whole")
    keep_run(tmp_path / "runs" / "half", state="incomplete")
    keep_run(tmp_path / "runs" / "qemu", emulated=True)
    here = {label: name for label, name in list_measurements(tmp_path).items()
            if name.startswith(str(tmp_path))}  # fmt: skip
    folder = tmp_path / "runs" / "whole"
    assert list(here.values()) == [f"{folder}:avx512_off:1", f"{folder}:avx512_on:1"]
    assert list(here)[1].endswith("whole: avx512_on, 1 thread")


def test_of_two_the_verdict_is_said_under_their_names():
    names = [f"{wb.sample_run()}:avx512_{isa}:1" for isa in ("off", "on")]
    shown = compare_picked(names, {names[0]: "slow: one", names[1]: "fast: other"})
    expected = wb.compare_runs(*names)
    assert f"fast: other, against slow: one: {expected.speedup:.2f}x faster" in str(shown)
    heads = [label.get_text() for label in shown.parts[1].axes[0].get_xticklabels()]
    assert heads == ["slow\none", "fast\nother"]


def test_one_is_too_few_and_what_differs_has_to_be_said():
    labels = {name: label for label, name in list_measurements(SAMPLES.parent).items()}
    assert "Pick two" in str(compare_picked(list(labels)[:1], labels))
    threads = [name for name in labels if name.endswith(":avx512_on:2")]
    single = [name.removesuffix("2") + "1" for name in threads]
    with pytest.raises(ComparisonError, match="threads"):
        compare_picked([*single, *threads], labels)
    assert isinstance(compare_picked([*single, *threads], labels, across=["threads"]), Sheet)


def test_headless_the_first_run_is_compared():
    assert "x faster" in str(wb.pick_measurements(SAMPLES.parent, headless=True))


def test_what_may_differ_is_part_of_the_choice(monkeypatch):
    seen = []
    monkeypatch.setattr(explore, "display", seen.append)
    knobs, _ = wb.pick_measurements(SAMPLES.parent).children
    measurements, _, across = knobs.children
    threads = {name[-1]: name for _, name in measurements.options if ":avx512_on:" in name}
    one = threads["2"].removesuffix("2") + "1"
    measurements.value = [one, threads["2"]]
    assert 'role="alert"' in seen[-1].data and "--across threads" in seen[-1].data
    across.value = ["threads"]
    assert isinstance(seen[-1], Sheet)
