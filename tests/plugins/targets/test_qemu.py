"""The aarch64 runner under emulation: which code runs with SME2, and which without."""

import shutil

import pytest
import torch
from exporting import slow
from torch import nn

import workbench as wb

pytestmark = [pytest.mark.qemu, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def runner():
    try:
        return wb.find_runner("qemu")
    except wb.WorkbenchError as error:  # QEMU or a part of the bundle cannot be downloaded
        pytest.skip(str(error))


def test_the_emulated_cpu_has_sme2_where_cpuinfo_and_the_kernel_say(runner):
    isa = wb.read_isa(runner.command)
    assert isa.self_check == "ok"
    assert {"sme2", "sme2p1", "sme", "i8mm", "dot", "fp16arith"} <= set(isa.features)
    assert isa.arch == "aarch64"


def test_a_named_cpu_has_its_real_features(runner):
    isa = wb.read_isa(wb.find_runner("qemu:cortex-a76").command)
    assert isa.self_check == "ok"
    assert {"dot", "fp16arith"} <= set(isa.features)
    assert not {"sme2", "sme", "i8mm", "sve"} & set(isa.features)


def test_an_unknown_cpu_is_refused(runner, conv_pte, tmp_path):
    with pytest.raises(wb.WorkbenchError, match="did you mean 'cortex-a76'"):
        wb.measure(conv_pte, options=wb.MeasureOptions(target="qemu:cortex-a67"), root=tmp_path)


@pytest.mark.cases
def test_sme2_kernels_run_with_the_toggle_on_and_none_with_it_off(runner, conv_pte, tmp_path):
    pte = shutil.copy(conv_pte, tmp_path / "conv.pte")
    options = wb.MeasureOptions(
        target="qemu", toggle="sme2", runs=2, processes=2, warmup=1, cold_start=False
    )
    run = wb.measure(pte, options=options, root=tmp_path / "out")
    record = run.record
    assert record.platform == "qemu-aarch64" and "-qemu-aarch64-" in run.path.name
    assert record.emulated
    assert record.plan.target == "qemu"
    assert record.host["cpu"].startswith("max of QEMU 1")
    assert all(agreement.agree for agreement in record.agreements)
    names = {
        s.experiment: set(wb.read_etdump(run.path / s.etdump)["name"])
        for s in record.sessions
        if s.traced
    }
    assert any("(NHWC, PF32) IGEMM" in name for name in names["sme2_on"])
    assert any("(NHWC, F32) IGEMM" in name for name in names["sme2_off"])
    assert not any("PF32" in name for name in names["sme2_off"])


@pytest.mark.cases
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "int8"])
def test_samples_prove_that_sme2_ran(runner, tmp_path, dtype):
    exporting = wb.ExportOptions(dtype=dtype, sizes=(("size", 96),))
    pte = wb.export_model("toy_cnn", options=exporting, root=tmp_path)
    options = wb.MeasureOptions(
        target="qemu", toggle="sme2", runs=2, processes=2, warmup=1, timeout_s=600,
        cold_start=False,
    )  # fmt: skip
    analysis = wb.measure(pte, options=options, root=tmp_path)
    proof = analysis.comparisons[0].proof
    assert proof.outcome == "changed"
    assert proof.after["sme2"] > 0.5
    assert not proof.before.keys() & {"sme", "sme2"}
    ran = {
        name: set(analysis[name, 1].machine_code["function"]) for name in ("sme2_on", "sme2_off")
    }
    assert any("sme2_mopa" in function for function in ran["sme2_on"])
    assert not any("_sme" in function for function in ran["sme2_off"])


class Cells(nn.Module):
    """Products of 1, 4 and 64 rows, and convolutions, each on an input of its own."""

    def __init__(self, convolutions):
        super().__init__()
        linear, conv, turned = nn.Linear, nn.Conv2d, nn.ConvTranspose2d
        self.layers = nn.ModuleList([linear(512, 512), linear(256, 256), linear(64, 64)])
        self.inputs = [torch.randn(shape) for shape in ((1, 512), (4, 256), (64, 64))]
        self.products = [(torch.randn(8, rows, 64), torch.randn(8, 64, 64)) for rows in (1, 4, 64)]
        cells = [
            (conv(256, 256, 1), 1), (conv(128, 128, 1), 2), (conv(64, 64, 1), 8),
            (conv(64, 64, 3), 3), (conv(64, 64, 3, padding=1), 2), (conv(16, 32, 3, padding=1), 8),
            (conv(64, 128, 1, stride=2), 8), (conv(32, 32, 3, padding=1, groups=2), 8),
            (conv(16, 32, 3, padding=2, dilation=2), 8),
            (conv(128, 128, 3, padding=1, groups=128), 8),
            (conv(64, 64, 7, padding=3, groups=64), 8),
            (turned(16, 32, 3), 8), (turned(16, 32, 2, stride=2), 8),
        ]  # fmt: skip
        for layer, side in cells if convolutions else []:
            self.layers.append(layer)
            self.inputs.append(torch.randn(1, layer.in_channels, side, side))

    def forward(self, *tensors):
        singles, pairs = tensors[: len(self.layers)], tensors[len(self.layers) :]
        outputs = [layer(tensor) for layer, tensor in zip(self.layers, singles, strict=True)]
        return (*outputs, *(a @ b for a, b in zip(pairs[::2], pairs[1::2], strict=True)))


@pytest.mark.parametrize(
    ("dtype", "convolutions"),
    [
        ("fp32", False),
        *(slow(dtype, True) for dtype in ("fp32", "int8", "fp16", "fp16w", "int8dyn")),
        *(slow(dtype, False) for dtype in ("8da4w", "8da4c")),
    ],
)
def test_the_predicted_kernels_are_those_that_run(runner, tmp_path, dtype, convolutions):
    """38 cells for each dtype, 12 for int4: 214 in all."""
    torch.manual_seed(0)
    net = Cells(convolutions).eval()
    tensors = (*net.inputs, *(tensor for pair in net.products for tensor in pair))
    program = wb.export_model(net, tensors, options=wb.ExportOptions(dtype), root=tmp_path)
    assert program.export.sqnr_db > 10
    options = wb.MeasureOptions(
        target="qemu", toggle="sme2", runs=2, processes=1, warmup=1, timeout_s=600, cold_start=False
    )
    table = wb.measure(program, options=options, root=tmp_path).compare().sme2
    products = table[table["m"].notna()]
    assert len(products) == (19 if convolutions else 6)
    for state in ("off", "on"):
        sampled = products[products[f"executed_{state}"] != ""]
        print(f"{dtype}, SME2 {state}: {len(sampled)} of {len(products)} cells were sampled")
        # Of short cells, some machines sample a quarter.
        assert len(sampled) >= 0.2 * len(products), "too few samples: is the machine busy?"
        wrong = sampled[sampled[f"kernel_{state}"] != sampled[f"executed_{state}"]]
        assert wrong.empty, wrong[["operator", "dtype", "m", "n", "k", f"executed_{state}"]]
    others = table[table["m"].isna()]
    assert not others["executed_on"].str.startswith("sme").any()
