"""What Arm SME2 would change: predicted from a program alone, and compared with what ran."""

import json

import pytest
from exporting import LoadedModel
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


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


class Net(nn.Module):
    """A 1x1 convolution, a grouped one, and linear layers of one row and of 64."""

    def __init__(self):
        super().__init__()
        self.pointwise, self.grouped = nn.Conv2d(32, 64, 1), nn.Conv2d(64, 64, 3, groups=16)
        self.one, self.many = nn.Linear(64, 32), nn.Linear(64, 64)

    def forward(self, image, rows):
        return self.one(self.grouped(self.pointwise(image)).mean((2, 3))), self.many(rows)


@pytest.mark.parametrize(
    ("dtype", "kernels", "remedies"),
    [
        ("fp16", {"pointwise": "fp16", "grouped": "sme2_mopa", "one": "sme2_dot"}, {"fp16w"}),
        pytest.param(
            "8da4w", {"many": "i8mm", "one": "dotprod"}, {"8da4c"}, marks=pytest.mark.slow
        ),
        pytest.param(
            "8da4c", {"many": "sme2_mopa", "one": "sme2_sdot"}, set(), marks=pytest.mark.slow
        ),
    ],
)
def test_what_is_not_on_sme2_names_the_dtype_that_brings_it_there(
    cli, tmp_path, dtype, kernels, remedies
):
    model = LoadedModel("net", Net().eval(), (randn(1, 32, 8, 8), randn(64, 64)))
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


def test_a_program_of_unknown_operators_is_refused_in_one_line(cli, tmp_path):
    path = tmp_path / "broken.pte"
    path.write_bytes(b"no program")
    code, _, err = cli("sme2", path)
    assert code == 1 and err.count("\n") == 1 and "broken.pte" in err
