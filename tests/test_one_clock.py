"""Everywhere, parts are parts of the latency: they add up to it, and none is longer."""

import re
import shutil

import numpy as np
import pandas as pd
import pytest
from changed_runs import edit_json
from explored import read_data
from recorded import open_once, recorded
from test_golden_runs import RUNS, mark_sample

import workbench as wb

SAMPLES = [*map(mark_sample, RUNS)]


def run_of(sample):
    return open_once(RUNS[sample])


def adds_up(times, whole, what):
    """Whether times add up to a whole that none of them exceeds; layers' times may be nested."""
    times = np.asarray(times, float)
    assert np.nansum(times) == pytest.approx(whole, rel=1e-6), what
    assert np.nanmax(times) <= whole * (1 + 1e-6), what


@pytest.mark.parametrize("sample", SAMPLES)
def test_parts_of_a_measurement_add_up_to_its_latency(sample):
    for m in run_of(sample).traced:
        whole = m.statistics["latency"].iloc[0]
        adds_up(m.operators["mean_ms"], whole, "operators")
        adds_up(m.categories["mean_ms"], whole, "categories")
        runs = m.ledger.groupby(["process", "run"])["duration_ns"].sum() / 1e6
        assert runs.mean() == pytest.approx(whole), "ledger"
        if m.layers is None:
            continue
        adds_up(m.layers["own_ms"], whole, "layers")
        assert m.layers["total_ms"].max() <= whole * (1 + 1e-6)


@pytest.mark.parametrize("sample", SAMPLES)
def test_parts_of_a_comparison_add_up_to_both_latencies(sample):
    for ab in run_of(sample).comparisons:
        tables = {"category": ab.categories, "operator": ab.operators, "layer": ab.layers}
        tables |= {"kind": ab.kinds, "shift": ab.shift}
        for side in ("baseline_ms", "candidate_ms"):
            whole = ab.latency[side].iloc[0]
            for what, table in tables.items():
                if table is not None:
                    adds_up(table[side], whole, f"{what} of {ab.label}: {side}")


@pytest.mark.parametrize("sample", SAMPLES)
def test_the_explorer_has_the_parts_of_the_latency(sample):
    for side in read_data(run_of(sample))["measurements"]:
        whole = side["latency"]["latency"]
        adds_up(np.array(side["mean_ms"], float), whole, "operators")
        adds_up([row["mean_ms"] for row in side["categories"]], whole, "categories")


@pytest.mark.parametrize("sample", SAMPLES)
def test_tables_say_of_which_latency_they_have_the_parts(sample):
    m = run_of(sample).subject
    if m.emulated:
        assert "by type of operator (emulated" in str(wb.show(m, "operators"))
        return
    text = str(wb.show(m, "operators", top=1000))
    whole = re.search(r"by type of operator, of ([\d.]+) (\S+)\*\*", text)
    ms = {"ms": 1.0, "us": 1e-3, "µs": 1e-3}
    assert float(whole[1]) * ms[whole[2]] == pytest.approx(m.latency_ms, rel=0.005)
    cells = [row.split(" | ")[4] for row in text.split("\n\n")[1].splitlines()[2:]]
    times = [float(cell.removeprefix("<")) for cell in cells]
    around = re.search(r"Not in this list: ([\d.]+) (\S+) ", text)
    times.append(float(around[1]) * ms[around[2]])
    assert sum(times) == pytest.approx(m.latency_ms, rel=0.01)


def test_a_combined_page_has_no_layer_longer_than_its_run():
    """Of AsTrained, other programs had the CPU in three quarters of the traced time."""
    combined = wb.combine_runs([str(RUNS["Ready"]), str(RUNS["AsTrained"])])
    runs = combined.runs.set_index("run")["latency_ms"]
    for name, rows in combined.layers.groupby("run"):
        adds_up(rows["time_ms"], runs[name], name)


@pytest.mark.parametrize("level", ["categories", "operators", "layers"])
def test_ratios_of_parts_are_those_of_traced_times(level, slower):
    """Scaling moves no verdict: it would add the noise of both latencies to every part."""
    before, after = (getattr(run.compare(), level) for run in (recorded(), slower))
    key = "key" if level == "operators" else "name"
    before, after = before.set_index(key), after.set_index(key).reindex(before[key])
    assert after["baseline_ms"].tolist() == before["baseline_ms"].tolist()
    np.testing.assert_allclose(after["candidate_ms"], 2 * before["candidate_ms"])
    decided = ["speedup", "low", "high", "outcome", "q"]
    pd.testing.assert_frame_equal(after[decided], before[decided], check_exact=True)


@pytest.fixture(scope="module")
def slower(tmp_path_factory):
    """The sample, with latencies of the candidate twice as long, and the same traces."""
    folder = shutil.copytree(wb.sample_run(), tmp_path_factory.mktemp("slower") / "run")

    def double(manifest):
        for session in manifest["sessions"]:
            if session["experiment"] == "avx512_on" and not session["traced"]:
                for batch in session["batches"]:
                    for clock in ("wall_ns", "cpu_ns"):
                        batch[clock] = [2 * ns for ns in batch[clock]]

    edit_json(folder / "manifest.json", double)
    return wb.open_run(folder)
