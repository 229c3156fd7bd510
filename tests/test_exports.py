"""Exports side by side, from their records alone."""

import math
from dataclasses import replace

import pytest

import workbench as wb


@pytest.fixture
def exports():
    return wb.read_exports(wb.sample_file("exports"))


def test_every_recorded_export_is_a_row(exports):
    lines = str(wb.show(exports)).splitlines()
    for export in exports:
        rows = [line for line in lines if f"| {export.model} | {export.dtype} |" in line]
        figure = f"| {export.sqnr_db:.3g}".replace("-", "\N{MINUS SIGN}")
        assert any(figure in line for line in rows)


def test_what_was_left_behind_has_its_reason_and_line(exports):
    shown = str(wb.show(exports[0]))
    left = [part for part in exports[0].partition if not part.delegated]
    assert left and all(part.operator in shown for part in left[:3])
    assert all(part.source.rpartition("/")[2] in shown for part in left[:3])


def test_what_was_not_compared_has_no_figure(exports):
    bare = replace(exports[0], fidelity=(), problem="nobody looked")
    assert bare.sqnr_db is None and not math.isnan(exports[0].sqnr_db)
    assert "nobody looked" in str(wb.show([bare]))


def test_no_record_and_a_bad_one_are_said(tmp_path):
    with pytest.raises(Exception, match="no export record"):
        wb.read_exports(tmp_path)
    (tmp_path / "x.pte.export.json").write_text("{")
    with pytest.raises(Exception, match="not JSON"):
        wb.read_exports(tmp_path)


def test_the_table_shows_the_noise_that_the_verdict_warns_of(exports):
    rows = [line for line in str(wb.show(exports)).splitlines() if "squeezesam" in line]
    noisy = ["differ from the PyTorch model's by 26 %" in line for line in rows]
    assert noisy == ["| int8 |" in line for line in rows] and any(noisy)
