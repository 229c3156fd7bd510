"""data/zoo.md is complete and reproducible."""

import random
import sys
from pathlib import Path

import pytest

from workbench.export.lower import DTYPES
from workbench.models.registry import list_models

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "benchmarks"))

from zoo import HEADER, measure_in_process, read_rows, warm_up  # noqa: E402

ROWS = read_rows(ROOT / "data" / "zoo.md")
COSTLY = ("edgetam_image_encoder", "efficient_sam_tiny_encoder", "resnet50")


def test_rows_name_known_models_and_dtypes():
    assert ROWS
    assert {model for model, _ in ROWS} <= set(list_models())
    assert {dtype for _, dtype in ROWS} <= set(DTYPES)


@pytest.mark.parametrize("row", ROWS.values(), ids=lambda row: f"{row[0]}-{row[1]}")
def test_every_row_has_figures_or_a_reason(row):
    cells = dict(zip(HEADER, row, strict=True))
    figures = [cells[name] for name in HEADER[2:7]]
    refused = not any(figures) and cells["remarks"]
    assert all(figures) or refused or cells["remarks"].startswith("**wrong**: ")
    assert "Traceback" not in cells["remarks"]
    assert not cells["remarks"].startswith("**crash")


@pytest.mark.long
def test_a_sampled_row_is_reproduced():
    quick = [row for row in ROWS.values() if row[0] not in COSTLY and row[1] != "bf16"]
    row = random.Random(0).choice(quick)
    warm_up()
    again = dict(zip(HEADER, measure_in_process(row[0], row[1], None), strict=True))
    before = dict(zip(HEADER, row, strict=True))
    print(before, again)
    for name in ("delegates", "undelegated", "remarks"):
        assert again[name] == before[name], name
    if before["MB"]:
        assert float(again["MB"]) == pytest.approx(float(before["MB"]), rel=0.02)
    if before["SQNR (dB)"] not in ("", "equal"):
        # Another CPU has other kernels, which round differently.
        assert float(again["SQNR (dB)"]) == pytest.approx(float(before["SQNR (dB)"]), abs=6)
