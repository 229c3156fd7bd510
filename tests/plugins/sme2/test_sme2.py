"""What Arm SME2 would change, predicted from a program."""

import json
import warnings

import pytest
from changed_runs import with_record
from exporting import make_model
from recorded import recorded
from torch import nn, randn

import workbench as wb


@pytest.fixture(scope="module")
def sample():
    return recorded("toy_cnn")


def test_the_recorded_samples_agree_with_the_prediction(sample):
    table = sample.compare().sme2
    products = table[table["m"].notna()]
    for state in ("off", "on"):
        executed = products[products[f"executed_{state}"] != ""]
        assert len(executed) == 4
        assert (executed[f"executed_{state}"] == executed[f"kernel_{state}"]).all()
    linear = products.set_index("operator").loc["linear"]
    assert (linear["kernel_off"], linear["kernel_on"]) == ("neon", "sme2_mla")
    assert "one row" in linear["reason"]
    text = str(wb.show(sample, "sme2"))
    assert "emulated" in text and "sme2_mopa" in text and "not how fast" in text


def test_a_run_on_another_cpu_has_the_prediction_only():
    run = recorded()
    table = run.subject.sme2.set_index("operator")
    assert not {"executed_on", "executed_off"} & set(run.compare().sme2)
    depthwise = table.loc["DepthwiseConv2d"]
    assert (depthwise["kernel_on"] == "neon").all()
    assert depthwise["k"].isin([9, 25]).all()
    pointwise = table.loc["1x1 convolution"]
    assert set(pointwise.loc[pointwise["m"] == 1, "kernel_on"]) == {"sme2_mla"}
    assert set(pointwise.loc[pointwise["m"] > 1, "kernel_on"]) == {"sme2_mopa"}


class Net(nn.Module):
    """A 1x1 convolution, a grouped one, and linear layers of one row and of 64."""

    def __init__(self):
        super().__init__()
        self.pointwise, self.grouped = nn.Conv2d(32, 64, 1), nn.Conv2d(64, 64, 3, groups=16)
        self.one, self.many = nn.Linear(64, 32), nn.Linear(64, 64)

    def forward(self, image, rows):
        return self.one(self.grouped(self.pointwise(image)).mean((2, 3))), self.many(rows)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("dtype", "kernels", "remedies"),
    [
        ("fp16", {"pointwise": "fp16", "grouped": "sme2_mopa", "one": "sme2_dot"}, {"fp16w"}),
        pytest.param(
            "8da4w", {"many": "i8mm", "one": "dotprod"}, {"8da4c"}, marks=pytest.mark.cases
        ),
        pytest.param(
            "8da4c", {"many": "sme2_mopa", "one": "sme2_sdot"}, set(), marks=pytest.mark.cases
        ),
    ],
)
def test_what_is_not_on_sme2_names_the_dtype_that_brings_it_there(
    cli, tmp_path, dtype, kernels, remedies
):
    model = make_model("net", Net().eval(), (randn(1, 32, 8, 8), randn(64, 64)))
    program = wb.export_model(model, options=wb.ExportOptions(dtype), root=tmp_path)
    code, out, _ = cli("sme2", program.path, "--json")
    assert code == 0
    ((name, rows),) = json.loads(out)["kernels"].items()
    assert f"net, {dtype}, SQNR " in name
    by_module = {row["module"]: row for row in rows if row["m"] is not None}
    assert {module: by_module[module]["kernel_on"] for module in kernels} == kernels
    named = {row["remedy"].removeprefix("--dtype ") for row in rows if "--dtype" in row["remedy"]}
    assert named == remedies
    assert "tiles (m = 36, n = 4)" in by_module["grouped"]["reason"]
    text = str(wb.show(program, "sme2"))
    assert all(kernel in text for kernel in kernels.values())


class Depthwise(nn.Module):
    """Depthwise convolutions of 25 taps, and of 27 and 49, for which there is no such kernel."""

    def __init__(self):
        super().__init__()
        self.five = nn.Conv2d(8, 8, 5, groups=8)
        self.wide = nn.Conv2d(8, 8, (3, 9), groups=8)
        self.twice = nn.Conv2d(8, 16, 7, groups=8)

    def forward(self, image):
        return self.twice(self.wide(self.five(image).relu()).relu())


@pytest.mark.whole
def test_depthwise_convolutions_of_more_than_25_taps_run_as_products(cli, tmp_path):
    """As executed under QEMU, with SME2 and without."""
    model = make_model("net", Depthwise().eval(), (randn(1, 8, 24, 24),))
    program = wb.export_model(model, options=wb.ExportOptions("int8"), root=tmp_path)
    (rows,) = json.loads(cli("sme2", program.path, "--json")[1])["kernels"].values()
    products = {row["module"]: row for row in rows if row["m"] is not None}
    kernels = [
        [products[module][state] for state in ("kernel_off", "kernel_on")]
        for module in ("five", "wide", "twice")
    ]
    assert kernels == [["neon"] * 2, ["i8mm"] * 2, ["i8mm"] * 2]
    assert "49 filter taps: 2-column products" in products["twice"]["reason"]


def test_a_version_that_was_not_checked_is_named(sample):
    assert "Not checked" not in str(wb.show(sample, "sme2"))
    other = with_record(sample, versions={**sample.record.versions, "executorch": "9.9.0"})
    text = str(wb.show(other, "sme2"))
    assert "Not checked: executorch 9.9.0 is not among 1.5.0" in text


def test_a_program_without_products_or_layers_has_empty_texts(cli, tmp_path):
    class Unnamed(nn.Module):
        def forward(self, x):
            return x + 1

    with warnings.catch_warnings(action="ignore"):
        program = wb.export_model(make_model("net", Unnamed(), (randn(4, 4),)), root=tmp_path)
    with warnings.catch_warnings(action="error"):
        code, out, _ = cli("sme2", program.path, "--json")
    ((_, rows),) = json.loads(out)["kernels"].items()
    assert code == 0 and rows
    assert not any(row["module"] or row["reason"] or row["remedy"] for row in rows)


def test_a_program_of_unknown_operators_is_refused_in_one_line(cli, tmp_path):
    path = tmp_path / "broken.pte"
    path.write_bytes(b"no program")
    code, _, err = cli("sme2", path)
    assert code == 1 and err.count("\n") == 1 and "broken.pte" in err
