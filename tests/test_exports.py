"""Exports side by side, from their records alone."""

import math
from dataclasses import replace

import pytest

import workbench as wb
from workbench.analysis.exports import compare_exports, list_partition
from workbench.errors import StoreError, UsageError


@pytest.fixture
def exports():
    return wb.read_exports(wb.sample_file("exports"))


def test_every_recorded_export_is_a_row(exports):
    table = compare_exports(exports)
    assert table["dtype"].tolist() == [e.dtype for e in exports]
    for row, export in zip(table.itertuples(), exports, strict=True):
        assert row.size_mb == export.size_bytes / 1e6
        assert row.undelegated == sum(p.count for p in export.partition if not p.delegated)
        assert row.sqnr_db == min(f.sqnr_db for f in export.fidelity)


def test_what_was_not_compared_has_no_figure(exports):
    bare = replace(exports[0], fidelity=(), problem="nobody looked")
    row = compare_exports([bare]).iloc[0]
    assert math.isnan(row["sqnr_db"])
    assert row["problem"] == "nobody looked"


def test_what_was_left_behind_has_its_reason_and_line(exports):
    left = list_partition(exports[0])
    assert left["count"].is_monotonic_decreasing
    assert left["reason"].str.len().gt(0).all()
    assert left["source"].str.contains(r"\.py:\d+$").all()
    assert list_partition(replace(exports[0], partition=())).empty


def test_no_record_and_a_bad_one_are_said(tmp_path):
    with pytest.raises(UsageError, match="no export record"):
        wb.read_exports(tmp_path)
    (tmp_path / "x.pte.export.json").write_text("{")
    with pytest.raises(StoreError, match="not JSON"):
        wb.read_exports(tmp_path)
