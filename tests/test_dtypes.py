"""Which operators ran in the dtype that was asked for, and what is said about the others."""

import dataclasses
import json
import shutil

import pandas as pd
import pytest
from changed_runs import changed, with_record
from recorded import recorded

import workbench as wb

SAM = recorded("squeezesam")
F32 = "Fully Connected (NC, F32) GEMM"
QC8 = "Fully Connected (NC, QS8, QC8W) GEMM"


def operators(*rows):
    """Operators of one millisecond each, from what they differ in."""
    defaults = {"name": "x", "kind": "delegated", "family": "gemm", "mean_ms": 1.0, "share": 0.1}
    defaults |= {"module": "fc", "module_class": "Linear", "shapes": "1x64 -> 1x8"}
    return pd.DataFrame([{**defaults, "key": f"0/{n}", **row} for n, row in enumerate(rows)])


def measured(frame, dtype, emulated=False, **options):
    """A measurement with these operators, of a program that was exported in a dtype."""
    export = dataclasses.replace(SAM.record.export, dtype=dtype, options=options)
    run = with_record(SAM, export=export, emulated=emulated)
    return changed(run.subject, operators=frame)


def test_operators_are_counted_by_the_dtype_in_their_logged_names():
    lstm = {"operator": F32, "module": "lstm", "module_class": "LSTM", "mean_ms": 9.0}
    frame = operators({"operator": QC8}, lstm, lstm)
    table = measured(frame, "int8").dtypes
    assert table["dtype"].tolist() == ["int8", "fp32", "fp32"]
    assert table["reason"].tolist()[0] == ""
    text = "1 of 3 convolutions and matrix products ran in int8"
    reason = "2 in fp32: inside nn.LSTM, which the quantiser sees as one operator"
    shown = str(wb.show(measured(frame, "int8"), "dtypes"))
    assert f"{text} (5.3 % of their time); {reason}" in shown
    assert f"{text}; {reason}" in str(wb.show(measured(frame, "int8", emulated=True), "dtypes"))


def test_depthwise_convolutions_count():
    name = "Convolution (NHWC, F32) DWConv"
    frame = operators({"operator": QC8}, {"operator": name, "family": "depthwise", "mean_ms": 3.0})
    shown = str(wb.show(measured(frame, "int8"), "dtypes"))
    assert "1 of 2 convolutions and matrix products ran in int8 (25 % of their time)" in shown


@pytest.mark.parametrize(
    ("asked", "operator", "ran"),
    [
        ("8da4w", "Fully Connected (NC, QD8, F32, QB4W) GEMM", "int8"),
        ("int8dyn", "Fully Connected (NC, QDU8, F32, QC8W) GEMM", "int8"),
        ("fp16", "Fully Connected (NC, PF16) GEMM", "fp16"),
        ("fp16", F32, "fp32"),
        ("bf16", "native_call_convolution.out", "bf16"),
    ],
)
def test_every_dtype_has_its_names(asked, operator, ran):
    row = measured(operators({"operator": operator}), asked).dtypes.iloc[0]
    assert row["dtype"] == ran
    assert (row["reason"] == "") == (row["dtype"] == row["asked"])


@pytest.mark.parametrize(
    ("row", "dtype", "words"),
    [
        ({}, "int8", "no pattern"),
        ({"kind": "portable"}, "int8", "outside the delegate"),
        ({"family": "bmm"}, "int8", "without weights"),
        ({"family": "convolution"}, "int8dyn", "not a linear layer"),
        ({"module_class": "Conv2d"}, "8da4w", "not a linear layer"),
        ({"shapes": "1x7x48 -> 1x7x64"}, "8da4w", "groups of 32"),
        ({"module": "head.fc.out"}, "int8", "fp32 by --module-dtype"),
        ({}, "fp16", "no fp16 kernel"),
    ],
)
def test_what_stays_in_float_has_a_reason(row, dtype, words):
    frame = operators({"operator": F32, **row})
    table = measured(frame, dtype, module_dtypes="stem=fp32, head.*=fp32").dtypes
    assert words in table["reason"].iloc[0]


@pytest.mark.whole
def test_the_recorded_sample_says_what_stayed_in_float():
    table = SAM.subject.dtypes
    assert table["asked"].unique().tolist() == ["int8"]
    assert table["mean_ms"].sum() < SAM.subject.operators["mean_ms"].sum()
    text = "27 of 31 convolutions and matrix products ran in int8 ("
    assert text in str(wb.show(SAM)) and text in str(wb.show(SAM, "dtypes"))
    assert recorded().subject.dtypes is None
    assert "Not applicable" in str(wb.show(recorded(), "dtypes"))


def test_the_noise_of_an_export_is_a_table(tmp_path):
    folder = shutil.copytree(wb.sample_run("squeezesam"), tmp_path / "run")
    record = json.loads((folder / "manifest.json").read_text())
    noise = {"module": "head", "operator": "linear", "own_db": 3.2, "sqnr_db": None}
    record["export"]["noise"] = [noise]
    (folder / "manifest.json").write_text(json.dumps(record))
    assert "| head | linear | 3.2" in str(wb.show(wb.open_run(folder), "dtypes"))
