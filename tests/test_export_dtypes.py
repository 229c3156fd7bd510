"""Quantised and half-precision programs, what is done to their graphs, and how it is told."""

import functools
import itertools
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from exporting import export_quietly, slow
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import workbench as wb
from workbench.errors import ExportError, UsageError
from workbench.export.accuracy import (
    coarse_kernels,
    compare_with_model,
    describe_problem,
    explain_log,
)
from workbench.export.artifact import export_model, list_problems
from workbench.export.precision import DTYPES
from workbench.export.program import raw_bytes
from workbench.export.quantize import quantize_activations
from workbench.models.loader import LoadedModel
from workbench.models.zoo.toy_cnn import fill_weights
from workbench.options import QUANTISER_REWRITES, ExportOptions
from workbench.records.layer_sidecar import Instruction, Layers, Method, Origin, XNode


class Mixed(nn.Module):
    """A convolution, a scalar that multiplies, a gate, a head of linear layers."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 32, 3, padding=1)
        self.pointwise = nn.Conv2d(32, 64, 1)
        self.gain = nn.Parameter(torch.tensor(1.5))
        self.head = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 10))

    def forward(self, x):
        x = self.pointwise(self.conv(x).relu())
        x = x * nn.functional.hardsigmoid(x) * self.gain
        return self.head(x.mean((2, 3)))


def mixed_model(**changes):
    torch.manual_seed(1)
    fields = {"module": fill_weights(Mixed()), "example_inputs": (torch.randn(1, 3, 12, 12),)}
    return LoadedModel("mixed", **fields | changes)


@pytest.fixture(scope="module")
def record_of(tmp_path_factory):
    """The record of the mixed model in a dtype, exported once with those rewrites."""
    root, rewrite = tmp_path_factory.mktemp("mixed"), QUANTISER_REWRITES
    return functools.cache(
        lambda dtype: export_quietly(mixed_model(), root, dtype=dtype, rewrite=rewrite)
    )


# Dtypes


@pytest.mark.parametrize(
    ("dtype", "least", "quantized"),
    [
        slow("fp32", 100, ""),
        slow("fp16w", 45, ""),
        slow("fp16", 45, ""),
        slow("bf16", 25, ""),
        pytest.param("int8", 20, "4 of 4", marks=pytest.mark.whole),
        ("int8dyn", 30, "2 of 4"),
        slow("8da4w", 12, "2 of 4"),
        slow("8da4c", 12, "2 of 4"),
    ],
)
def test_each_dtype_computes_what_the_model_does(record_of, dtype, least, quantized):
    export = record_of(dtype)
    (output,) = export.fidelity
    assert least < output.sqnr_db < 200
    assert output.faithful is True
    assert output.dtype == DTYPES[dtype]
    assert 0 < output.max_abs < output.scale
    assert export.problem == ""
    name = "-".join(["mixed", *QUANTISER_REWRITES])
    assert export.pte == f"{name}_xnnpack_{dtype}.pte"
    assert export.options.get("quantized", "").startswith(quantized)
    left = sum(row.count for row in export.partition if not row.delegated)
    assert left == sum(row.count for row in export.undelegated)


@pytest.mark.cases
def test_smaller_dtypes_make_smaller_files(record_of):
    sizes = {dtype: record_of(dtype).size_bytes for dtype in DTYPES}
    assert sizes["fp16w"] < sizes["fp16"] < sizes["fp32"]
    assert sizes["int8"] < sizes["int8dyn"] < sizes["fp32"]
    assert sizes["8da4w"] < sizes["int8dyn"]


@pytest.mark.cases
def test_half_weights_end_with_the_export(tmp_path):
    model = LoadedModel("conv", nn.Conv2d(8, 16, 3), (torch.randn(1, 8, 6, 6),))
    before, half, after = (
        export_quietly(model, tmp_path, dtype=dtype) for dtype in ("fp16", "fp16w", "fp16")
    )
    assert half.size_bytes < before.size_bytes
    assert after.sha256 == before.sha256
    assert half.fidelity[0].sqnr_db > 45


@pytest.mark.cases
def test_transposed_convolutions_keep_what_xnnpack_takes(tmp_path):
    torch.manual_seed(0)
    module = nn.Sequential(nn.ConvTranspose2d(4, 8, 2, 2), nn.Conv2d(8, 4, 1))
    model = LoadedModel("up", module, (torch.randn(1, 4, 6, 6),))
    export = export_quietly(model, tmp_path, dtype="fp16w")
    assert export.delegates == {"XnnpackBackend": 1}
    assert export.fidelity[0].sqnr_db > 45


@pytest.mark.cases
def test_products_inside_a_recurrent_layer_count_as_float(tmp_path):
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.front, self.lstm = nn.Linear(8, 8), nn.LSTM(8, 8)

        def forward(self, x):
            return self.lstm(self.front(x))[0]

    model = LoadedModel("tagger", Tagger().eval(), (torch.randn(2, 1, 8),))
    export = export_quietly(model, tmp_path, dtype="int8")
    assert export.options["quantized"] == "1 of 4 convolutions and matrix products"


@pytest.mark.cases
def test_layers_can_be_kept_in_float(tmp_path):
    module = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4)))
    model = LoadedModel("deep", module, (torch.randn(2, 8),))
    export = export_quietly(model, tmp_path, dtype="int8dyn", module_dtypes=(("[1-9]", "fp32"),))
    assert export.options["quantized"].startswith("1 of 3")
    assert export.options["module_dtypes"] == "[1-9]=fp32"
    export = export_quietly(
        mixed_model(), tmp_path, dtype="8da4w", module_dtypes=(("head.0", "fp32"),)
    )
    assert export.options["quantized"].startswith("1 of 4")


@pytest.mark.parametrize("dtype", ["int8dyn", "8da4w"])
def test_nothing_to_quantise_is_an_error(dtype, tmp_path):
    model = LoadedModel("conv", nn.Conv2d(3, 4, 1), (torch.ones(1, 3, 4, 4),))
    options = ExportOptions(dtype=dtype, rewrite=("linears",))
    with pytest.raises(ExportError, match=rf"^model conv: nothing to quantise for {dtype}.*int8"):
        export_model(model, options=options, root=tmp_path)
    assert not list(tmp_path.rglob("*"))


class ClassToken(nn.Module):
    """A small token before large ones; what becomes of it alone is the result."""

    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.full((1, 1, 8), 0.01))
        self.embed, self.head = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        tokens = torch.cat([self.token.expand(len(x), -1, -1), 100 * self.embed(x)], 1)
        return self.head(tokens[:, 0])


@pytest.mark.cases
def test_what_no_layer_made_shares_no_scale(tmp_path):
    """One scale for all tokens would round the class token to zero."""
    torch.manual_seed(0)
    model = LoadedModel("token", ClassToken(), (torch.randn(1, 4, 8),))
    plain = export_quietly(model, tmp_path, dtype="int8")
    assert plain.rewrite == () and "concatenations" in plain.cure.rewrites
    kept = export_quietly(model, tmp_path, dtype="int8", rewrite=("concatenations",))
    assert kept.fidelity[0].sqnr_db > 30 and kept.rewrite == ("concatenations",)


@pytest.mark.cases
def test_calibration_sees_every_batch(tmp_path):
    """Ranges from the small example alone would clip what the larger batch shows."""
    torch.manual_seed(0)
    module, x = nn.Sequential(nn.Linear(16, 16)), torch.randn(4, 16)
    narrow = LoadedModel("narrow", module, (x,), calibration=())
    wide = LoadedModel("wide", module, (x,), calibration=(((x * 30,), {}), ((x * 10,), {})))
    exports = [export_quietly(model, tmp_path, dtype="int8") for model in (narrow, wide)]
    assert exports[0].options["calibration"].startswith("1 batches")
    assert exports[1].options["calibration"].startswith("3 batches")
    assert exports[0].fidelity[0].sqnr_db > exports[1].fidelity[0].sqnr_db + 15


def test_a_portable_program_is_not_quantised(tmp_path):
    with pytest.raises(UsageError, match=r"^dtype int8: the portable kernels.*fp16"):
        export_model(
            mixed_model(), options=ExportOptions(dtype="int8", backend="portable"), root=tmp_path
        )


# An export that is wrong is said to be wrong


@pytest.mark.parametrize("dtype", [slow("fp16"), "bf16"])
def test_an_imprecise_kernel_is_the_cause_that_is_told(dtype, tmp_path):
    """576 ones: their sum in half precision is exact, in bfloat16 it stays at 256."""
    conv = nn.Conv2d(64, 1, 3, bias=False)
    nn.init.ones_(conv.weight)
    model = LoadedModel("ones", conv, (torch.ones(1, 64, 3, 3),))
    export = export_quietly(model, tmp_path, dtype=dtype, backend="portable")
    if dtype == "fp16":
        assert export.problem == ""
        return
    assert export.fidelity[0].max_abs == 576 - 256
    assert "cause: 1 convolutions run on ExecuTorch's own kernel, which accumulates in bf" in (
        export.problem
    )
    assert coarse_kernels("float32", {"aten::convolution.out": 1}) == ""
    assert coarse_kernels("bfloat16", {"aten::add.out": 1}) == ""


@pytest.mark.cases
def test_a_kernel_that_refuses_its_tensors_is_the_cause_that_is_told(tmp_path):
    """ExecuTorch's own kernels do not add a tensor in NCHW to one in NHWC."""

    class Mingling(nn.Module):
        def forward(self, x):
            last = x.to(memory_format=torch.channels_last)
            return torch.add(x, last.sin())

    model = LoadedModel("mingling", Mingling(), (torch.randn(1, 3, 4, 5),))
    with pytest.raises(ExportError, match=r"aten::add.out fails in \S+ .*:\d+\)") as error:
        export_quietly(model, tmp_path, backend="portable")
    export = wb.open_program(error.value.where).export
    assert error.value.where.exists() and not export.runs and export.fidelity == ()
    assert "different dim orders" in export.problem


def test_an_operator_that_xnnpack_rejects_is_named():
    nodes = tuple(
        XNode("StaticSlice", (0,), (1,), {}, 0, 0, handle, origins=origins)
        for handle, origins in ((3, ()), (17, (0,)))
    )
    origin = Origin("slice_1", "aten.slice_copy.Tensor", "neck.gate", "Gate", "net.py:12")
    method = Method("forward", (Instruction("delegate", xnodes=nodes),), {}, (origin,))
    log = "E [XNNCompiler.cpp:1] Failed to create static slice node {} with code: xnn_status_x_y\n"
    told = "XNNPACK rejects a static slice node"
    layers = Layers("", (method,))
    assert explain_log(log.format(17), layers) == f"{told} in neck.gate (net.py:12) (x_y)"
    assert explain_log(log.format(3), layers) == f"{told} (x_y)"
    log = "[a.cpp:1] Internal Error: Propagating input shapes failed with code: xnn_status_x_y"
    rejects = "XNNPACK rejects a delegate: "
    assert explain_log(log) == f"{rejects}Propagating input shapes failed (x_y)"
    log = "[a.cpp:1] XNN Runtime creation failed with code: xnn_status_z"
    assert explain_log(log) == f"{rejects}XNN Runtime creation failed (z)"


@pytest.mark.cases
def test_a_program_that_does_not_run_is_kept_and_reported_each_time(tmp_path, monkeypatch):
    """In ExecuTorch 1.5.1, a convolution whose result is squared stays half quantised."""
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(
        "import torch\nfrom torch import nn\nfrom workbench import EagerModelBase\n"
        "class Square(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.stem, self.head = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 1)\n"
        "    def forward(self, x):\n"
        "        return self.head(self.stem(x) * self.stem(x))\n"
        "class Squared(EagerModelBase):\n"
        "    def get_eager_model(self): return Square()\n"
        "    def get_example_inputs(self): return (torch.randn(1, 3, 8, 8),)\n"
    )
    words = r"does not run here: XNNPACK rejects a convolution node in stem \(net.py:9\)"
    for _ in range(2):
        with pytest.raises(ExportError, match=words) as error:
            export_model("net.py:Squared", options=ExportOptions(dtype="int8"))
    assert error.value.where.exists() and not wb.open_program(error.value.where).export.runs


class Spiky(nn.Module):
    """One layer reads an outlier, which leaves all other values less than a step of int8."""

    def __init__(self):
        super().__init__()
        self.first, self.spiky, self.last = (nn.Linear(64, 64) for _ in range(3))
        with torch.no_grad():
            self.first.bias[0] = 2000
            self.spiky.weight[:, 0] = 0

    def forward(self, x):
        return self.last(torch.relu(self.spiky(self.first(x))))


@pytest.mark.cases
@pytest.mark.parametrize("dtype", ["int8", "8da4w"])
def test_the_layers_where_quantisation_noise_enters_are_named(dtype, tmp_path):
    torch.manual_seed(0)
    model = LoadedModel("spiky", Spiky().eval(), (torch.randn(1, 64),))
    noisy = export_quietly(model, tmp_path, dtype=dtype)
    assert noisy.sqnr_db < 20
    worst, *others = noisy.noise
    assert worst.module == "spiky" and worst.own_db < min(n.own_db for n in others) - 10
    assert any("noise enters in spiky (" in line for line in list_problems(noisy))
    kept = (("first", "fp32"), (worst.module, "fp32"))
    helped = export_quietly(model, tmp_path / "kept", dtype=dtype, module_dtypes=kept)
    assert helped.sqnr_db > noisy.sqnr_db + 10


@pytest.mark.cases
@pytest.mark.parametrize("dtype", ["int8", "8da4w"])
def test_layers_that_stay_in_float_add_no_noise(dtype, tmp_path):
    """Though the activation writes into their results."""
    torch.manual_seed(0)
    block = nn.Sequential(nn.Conv2d(3, 32, 1), nn.BatchNorm2d(32), nn.ReLU(inplace=True))
    module = nn.Sequential(block, nn.Conv2d(32, 32, 1), nn.Flatten(), nn.Linear(128, 8))
    model = LoadedModel("inplace", module.eval(), (torch.randn(1, 3, 2, 2),))
    export = export_quietly(
        model, tmp_path, dtype=dtype, module_dtypes=(("0", "fp32"), ("1", "fp32"))
    )
    assert {noise.module for noise in export.noise} == {"3"}


@pytest.mark.cases
def test_an_export_that_collapses_is_told(tmp_path, capsys):
    """Small values in a range that a large constant stretches: int8 rounds them all to zero."""

    class Collapsing(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(8, 8)

        def forward(self, x):
            return torch.cat([self.fc(x), torch.full((1, 8), 1e6)], 1)[:, :8]

    torch.manual_seed(0)
    model = LoadedModel("collapsing", Collapsing(), (torch.randn(1, 8),))
    pte = export_model(model, options=ExportOptions(dtype="int8"), root=tmp_path).path
    assert "int8.pte: this export is wrong: output 0 is" in capsys.readouterr().err
    export = wb.open_program(pte).export
    assert export.problem == "output 0 is constant, the model's is not"
    assert export.fidelity[0].faithful is False
    assert list_problems(export)[0] == f"this export is wrong: {export.problem}"


def test_a_program_that_computes_something_else_is_told(tmp_path):
    class Moody(nn.Module):
        def forward(self, x):
            return x * 2 if torch.compiler.is_exporting() else x * 3

    export = export_quietly(LoadedModel("moody", Moody(), (torch.randn(5),)), tmp_path)
    assert export.problem == "output 0 is not the model's: SQNR 9.5 dB, at least 60 expected"


@pytest.mark.whole
def test_integers_that_are_not_the_models_are_told(tmp_path):
    """The places of the largest values of what ExecuTorch 1.5.1's delegate computes wrongly."""

    class Places(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 21, 1)

        def forward(self, x):
            return self.conv(x).permute(0, 2, 3, 1).softmax(-1).argmax(-1)

    torch.manual_seed(0)
    model = LoadedModel("places", Places(), (torch.randn(1, 3, 16, 16),))
    export = export_quietly(model, tmp_path)
    assert re.match(r"output 0 is not the model's: \d\d % of its integers differ", export.problem)
    assert export.cure.rewrites == ("softmax",) and export.cause.operator == "softmax"


def compared(program, eager, least=20):
    (output,) = compare_with_model([program], [eager], least)
    return output, describe_problem((output,))


def test_signal_and_noise_are_told_apart():
    eager = torch.tensor([3.0, 4.0])
    output, problem = compared(torch.tensor([3.0, 4.5]), eager)
    assert output.sqnr_db == pytest.approx(20)
    assert (output.max_abs, output.scale) == (0.5, 4)
    assert (output.faithful, problem) == (True, "")
    assert "SQNR 20.0 dB, at least 21 expected" in compared(torch.tensor([3.0, 4.5]), eager, 21)[1]


def test_integers_are_judged_by_how_many_differ():
    eager = torch.arange(20)
    few, many = (eager + (eager < count) for count in (2, 3))
    assert compared(few, eager, 60)[0].faithful
    output, problem = compared(many, eager, 60)
    assert output.differing == 0.15
    assert problem == "output 0 is not the model's: 15 % of its integers differ"
    assert compared(many, eager, 10)[0].faithful is None, "quantised values may be almost equal"


def test_equal_outputs_are_faithful_without_a_ratio():
    for values in ([0.0, 0.0], [1.0, 2.0], [float("nan"), 1.0, float("-inf")]):
        output, problem = compared(torch.tensor(values), torch.tensor(values))
        assert (output.sqnr_db, output.max_abs, output.faithful) == (None, 0, True)
        assert problem == ""


@pytest.mark.parametrize(
    ("program", "eager", "words"),
    [
        ([1.0, float("nan")], [1.0, 2.0], "1 of 2 values are NaN, in PyTorch none"),
        ([1.0, 2.0], [1.0, float("nan")], "none of 2 values are NaN, in PyTorch 1"),
        ([1.0, float("inf")], [1.0, float("-inf")], "1 of 2 values are infinite, in other"),
        ([0.0, 0.0], [1.0, 2.0], "constant"),
        ([1.0, 1.0], [0.0, 0.0], "zeros"),
        ([-1.0, -2.0], [1.0, 2.0], "SQNR -6.0 dB"),
    ],
)
def test_wrong_outputs_are_told(program, eager, words):
    output, problem = compared(torch.tensor(program), torch.tensor(eager))
    assert output.faithful is False
    assert words in problem


def test_whole_numbers_are_not_judged():
    output, problem = compared(torch.tensor([1, 2]), torch.tensor([1, 3]))
    assert (output.faithful, output.max_abs, problem) == (None, 1, "")
    output, _ = compared(torch.ones(0), torch.ones(0))
    assert output.faithful is True


def test_sums_are_in_double_precision():
    eager = torch.full((1 << 20,), 60_000.0, dtype=torch.float16)
    eager[0] = 1.0
    output, _ = compared(eager + 32, eager)
    assert output.sqnr_db == pytest.approx(20 * torch.tensor(60_000 / 32).log10().item(), abs=0.01)


def test_outputs_of_another_shape_are_refused():
    with pytest.raises(ValueError, match="the outputs are"):
        compared(torch.ones(2), torch.ones(3))


@pytest.mark.cases
def test_a_residual_stream_that_is_normalised_stays_in_float():
    """One scale for all channels of a stream with a large one would leave nothing of the others."""

    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.norm = nn.Linear(16, 16), nn.LayerNorm(16)

        def forward(self, x):
            return self.norm(x + self.inner(x))

    torch.manual_seed(0)
    x = torch.randn(1, 4, 16) * torch.logspace(-3, 3, 16)
    exported = torch.export.export(Residual().eval(), (x,))
    options, counts = ExportOptions(dtype="int8", rewrite=("sums",)), Counter()
    graph = quantize_activations(exported, options, [((x,), {})], counts)[0].graph
    assert counts == {"sums": 1}
    (total,) = (node for node in graph.nodes if node.target is torch.ops.aten.add.Tensor)
    assert not any("quantize" in str(user.target) for user in total.users)
    (linear,) = (node for node in graph.nodes if node.target is torch.ops.aten.linear.default)
    assert "dequantize" in str(linear.args[0].target)


# What the partitioner did


@pytest.mark.whole
def test_the_partitioners_own_reasons_are_kept(record_of):
    (mean,) = [row for row in record_of("fp32").partition if row.operator == "aten.mean.dim"]
    assert (mean.delegated, mean.reason) == (False, "mean.dim only supports keepdim=True")


# Inputs as bytes


@given(st.integers(0, 4).flatmap(lambda n: st.permutations(range(n))), st.data())
def test_raw_bytes_lie_in_the_given_order(dim_order, data):
    shape = [data.draw(st.integers(0, 4)) for _ in dim_order]
    dtype = data.draw(st.sampled_from([torch.float32, torch.float16, torch.int64, torch.bool]))
    tensor = torch.arange(int(np.prod(shape))).reshape(shape).to(dtype)
    stored = iter(np.frombuffer(raw_bytes(tensor, tuple(dim_order)), tensor.numpy().dtype))
    for place in itertools.product(*(range(shape[d]) for d in dim_order)):
        index = [0] * len(shape)
        for dimension, position in zip(dim_order, place, strict=True):
            index[dimension] = position
        assert next(stored) == tensor[tuple(index)]
    assert next(stored, None) is None
