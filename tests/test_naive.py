"""Adding up all spans: too much, by exactly what lies in another."""

import pytest

import workbench as wb


def test_it_counts_every_level_once_more():
    analysis = wb.open_run(wb.sample_run())
    events = wb.read_etdump(analysis.path / analysis.record.sessions[-1].etdump)
    ledger = wb.build_ledger(events)
    added = wb.add_up_spans(events, ledger)
    inside = events[events["run"] >= 0]
    per_run = inside["duration_ns"].sum() / 1e6 / inside["run"].nunique()
    assert added["mean_ms"].sum() == pytest.approx(per_run)
    nested = inside[inside["parent"] >= 0]["duration_ns"].sum() / 1e6 / inside["run"].nunique()
    right = wb.summarize_categories(ledger)["mean_ms"].sum()
    assert added["mean_ms"].sum() - right == pytest.approx(nested)
