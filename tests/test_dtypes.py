"""Which operators ran in the dtype that was asked for, and what is said about the others."""

import dataclasses

import pandas as pd
import pytest

import workbench as wb
from workbench.analysis.dtypes import cannot_quantize, describe_dtypes, tabulate_dtypes
from workbench.analysis.open import open_run
from workbench.frames import mark_emulated
from workbench.records.runs import LayerNoise

SAM = open_run(wb.sample_run("squeezesam"))
F32 = "Fully Connected (NC, F32) GEMM"
QC8 = "Fully Connected (NC, QS8, QC8W) GEMM"


def operators(*rows):
    """Operators of one millisecond each, from what they differ in."""
    defaults = {"name": "x", "kind": "delegated", "family": "gemm", "mean_ms": 1.0, "share": 0.1}
    defaults |= {"module": "fc", "module_class": "Linear", "shapes": "1x64 -> 1x8"}
    return pd.DataFrame([{**defaults, "key": f"0/{n}", **row} for n, row in enumerate(rows)])


def asked_for(dtype, **options):
    return dataclasses.replace(SAM.record.export, dtype=dtype, options=options)


def test_operators_are_counted_by_the_dtype_in_their_logged_names():
    lstm = {"operator": F32, "module": "lstm", "module_class": "LSTM", "mean_ms": 9.0}
    table = tabulate_dtypes(operators({"operator": QC8}, lstm, lstm), asked_for("int8"))
    assert table["dtype"].tolist() == ["int8", "fp32", "fp32"]
    assert table["reason"].tolist()[0] == ""
    text = "1 of 3 convolutions and matrix products ran in int8"
    reason = "2 in fp32: inside nn.LSTM, which the quantiser sees as one operator"
    assert describe_dtypes(table) == f"{text} (5 % of their time); {reason}"
    assert describe_dtypes(mark_emulated(table)) == f"{text}; {reason}"


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
    row = tabulate_dtypes(operators({"operator": operator}), asked_for(asked)).iloc[0]
    assert row["dtype"] == ran
    assert (row["reason"] == "") == (row["dtype"] == row["asked"])


@pytest.mark.parametrize(
    ("row", "dtype", "words"),
    [
        ({}, "int8", "no pattern"),
        ({"kind": "portable"}, "int8", "outside the delegate"),
        ({"family": "bmm"}, "int8", "without weights"),
        ({"family": "convolution"}, "int8dyn", "no linear layer"),
        ({"module_class": "Conv2d"}, "8da4w", "no linear layer"),
        ({"shapes": "1x7x48 -> 1x7x64"}, "8da4w", "groups of 32"),
        ({"module": "head.fc.out"}, "int8", "fp32 by --module-dtype"),
        ({}, "fp16", "no fp16 kernel"),
    ],
)
def test_what_stays_in_float_has_a_reason(row, dtype, words):
    table = operators({"operator": F32, **row})
    export = asked_for(dtype, module_dtypes="stem=fp32, head.*=fp32")
    assert words in tabulate_dtypes(table, export)["reason"].iloc[0]


def test_nothing_keeps_a_plain_linear_layer_from_being_quantised():
    row = operators({"operator": F32}).to_dict("records")[0]
    assert {cannot_quantize(row, dtype) for dtype in ("int8", "int8dyn", "8da4w")} == {""}


def test_the_recorded_sample_says_what_stayed_in_float():
    table = SAM.subject.dtypes
    assert table["asked"].unique().tolist() == ["int8"]
    assert table["mean_ms"].sum() < SAM.subject.operators["mean_ms"].sum()
    text = "27 of 31 convolutions and matrix products ran in int8 ("
    assert text in str(wb.show(SAM)) and text in str(wb.show(SAM, "dtypes"))
    assert open_run(wb.sample_run()).subject.dtypes is None
    assert "Not applicable" in str(wb.show(open_run(wb.sample_run()), "dtypes"))


def test_the_noise_of_an_export_is_a_table():
    noisy = dataclasses.replace(SAM.record.export, noise=(LayerNoise("head", "linear", 3.2, None),))
    run = dataclasses.replace(SAM, record=dataclasses.replace(SAM.record, export=noisy))
    assert "| head | linear | 3.2" in str(wb.show(run, "dtypes"))
