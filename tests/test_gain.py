"""The bar of what a program could gain: parts that add up, and what was tried together."""

import shutil

import pytest
from changed_runs import edit_json
from explored import read_data
from needed import needs

import workbench as wb

pytestmark = needs("remedies")


@pytest.fixture
def several(tmp_path):
    """A run with two remedies that were shown to help, and what keeps a trial of both."""
    folder = shutil.copytree(wb.sample_run("AsTrained"), tmp_path / "runs" / "linux")
    m = wb.open_run(folder).subject

    def keep(after_ms, remedy="attention,functions", low=30.0, **facts):
        before = m.latency_ms
        gains = {"gain_ms": before - after_ms, "low_ms": low, "high_ms": before - after_ms + 5}
        times = {"before_ms": before, "after_ms": after_ms} | gains
        trial = {"remedy": remedy, "finding": "together", "whole": True, "parts": 2, "tried": 2}

        def add(kept):
            kept["checks"].append(kept["checks"][0] | trial | times | facts)

        edit_json(folder / "checks.json", add)

    return m, keep


def parts_of(m):
    return {name: ms for _, name, ms in m.potential.segments}


def test_one_remedy_that_helped_and_the_floor_add_up_to_the_latency():
    m = wb.open_run(wb.sample_run("Net")).subject
    (helping,) = [each for each in m.opportunities if each.helps]
    parts = parts_of(m)
    assert list(parts) == ["floor", "rest", "functions"]
    assert sum(parts.values()) == pytest.approx(m.latency_ms)
    assert parts["functions"] == pytest.approx(helping.gain.ms)
    least = m.roofline[["least_ms", "mean_ms"]].min(axis=1).sum()
    assert parts["floor"] == pytest.approx(least) and least < m.potential.after_ms
    text = str(wb.show(m.run, "gain"))
    assert "with functions." in text and "estimate" in text and "together" not in text


def test_gains_that_were_not_tried_together_are_not_added_up(several):
    m, _ = several
    alone = m.potential.gains
    assert list(alone) == ["attention", "functions"] and m.potential.gain is None
    parts = parts_of(m)
    assert "functions" not in parts and parts["attention"] == pytest.approx(alone["attention"])
    assert sum(parts.values()) == pytest.approx(m.latency_ms)
    text = str(wb.show(m.run, "gain"))
    assert "the best one alone" in text and "the total is unknown" in text


def test_what_was_tried_together_is_what_was_measured(several):
    m, keep = several
    keep(50.0)
    parts, alone = parts_of(m), m.potential.gains
    assert parts["attention"] + parts["functions"] == pytest.approx(m.latency_ms - 50.0)
    ratio = alone["attention"] / alone["functions"]
    assert parts["attention"] / parts["functions"] == pytest.approx(ratio)
    assert sum(parts.values()) == pytest.approx(m.latency_ms)
    text = str(wb.show(m.run, "gain"))
    assert "attention, functions, tried together" in text and "unknown" not in text


@pytest.mark.parametrize(
    ("remedy", "facts"),
    [
        ("attention", {}),
        ("attention,functions", {"low": -1.0}),
        ("attention,functions", {"problem": "output 0", "differs": True}),
    ],
    ids=["of others", "not shown", "wrong"],
)
def test_a_trial_of_others_or_without_a_gain_leaves_the_total_unknown(several, remedy, facts):
    m, keep = several
    keep(50.0, remedy, **facts)
    assert m.potential.gain is None
    text = str(wb.show(m.run, "gain"))
    assert ("not tried together" in text) == (remedy == "attention")


def test_the_first_screens_have_the_bar():
    run = wb.open_run(wb.sample_run("Net"))
    shown = str(wb.show(run, "overview"))
    assert shown.count("What you could gain") == 1
    side = next(m for m in read_data(run)["measurements"] if m["potential"])
    assert sum(share for _, share, _ in side["potential"]["parts"]) == pytest.approx(1)
    assert "functions" in side["potential"]["texts"][0]


def test_without_a_remedy_or_times_nothing_is_promised():
    text = str(wb.show(wb.open_run(wb.sample_run()), "gain"))
    assert "no remedy was shown to help" in text
