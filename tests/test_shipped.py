"""The default export is the program of ExecuTorch's documented lines, byte for byte."""

import copy
import hashlib
import warnings

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
    XNNPACKQuantizer,
    get_symmetric_quantization_config,
)
from executorch.exir import to_edge_transform_and_lower
from exporting import export_quietly, make_model
from torch import nn
from torchao.quantization import Int8DynamicActivationIntxWeightConfig, quantize_
from torchao.quantization.granularity import PerGroup
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

import workbench as wb

DTYPES = ("fp32", "fp16", "bf16", "int8", "int8dyn", "8da4w")


def quantize(module, inputs, shapes, batches, dtype):
    """Upstream's recipe for a quantised module."""
    if dtype == "8da4w":
        config = Int8DynamicActivationIntxWeightConfig(
            weight_dtype=torch.int4, weight_granularity=PerGroup(32)
        )
        quantize_(module, config)
        return module
    quantizer = XNNPACKQuantizer()
    dynamic = dtype == "int8dyn"
    quantizer.set_global(get_symmetric_quantization_config(is_per_channel=True, is_dynamic=dynamic))
    prepared = prepare_pt2e(
        torch.export.export(module, inputs, dynamic_shapes=shapes).module(), quantizer
    )
    for batch in batches:
        prepared(*batch)
    return convert_pt2e(prepared)


def export_as_documented(model, dtype):
    """The SHA-256 of the program that ExecuTorch's documentation makes of a model."""
    module, inputs = copy.deepcopy(model.module).eval(), model.example_inputs
    if dtype in ("fp16", "bf16"):
        half = torch.float16 if dtype == "fp16" else torch.bfloat16
        module = module.to(half)
        inputs = tuple(x.to(half) if x.is_floating_point() else x for x in inputs)
    if dtype in ("int8", "int8dyn", "8da4w"):
        batches = [inputs, *(args for args, _ in model.calibration)]
        module = quantize(module, inputs, model.dynamic_shapes, batches, dtype)
    exported = torch.export.export(module, inputs, dynamic_shapes=model.dynamic_shapes)
    edge = to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()])
    return hashlib.sha256(edge.to_executorch().buffer).hexdigest()


class Upsampled(nn.Module):
    """Fused norms and activations, more tensors joined than XNNPACK joins at once."""

    def __init__(self):
        super().__init__()
        self.convs = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU6(), nn.MaxPool2d(2),
            nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.PReLU(8),
        )  # fmt: skip

    def forward(self, x):
        x = self.convs(x)
        large = nn.functional.interpolate(x, scale_factor=2, mode="bilinear")
        return torch.cat([large] * 7, 1).amax(1), x.permute(0, 2, 3, 1)


class Masked(nn.Module):
    """Attention with a mask and without, between linear layers."""

    def __init__(self):
        super().__init__()
        self.into, self.norm, self.out = nn.Linear(16, 48), nn.LayerNorm(16), nn.Linear(16, 8)
        self.register_buffer("mask", torch.zeros(6, 6))

    def forward(self, x):
        q, k, v = self.into(self.norm(x)).view(2, 6, 2, 24).transpose(1, 2).split(8, -1)
        attend = nn.functional.scaled_dot_product_attention
        x = attend(q, k, v, attn_mask=self.mask.to(q.dtype)) + attend(q, k, v)
        return nn.functional.gelu(self.out(x.transpose(1, 2).reshape(2, 6, 16)))


class Recurrent(nn.Module):
    """A loop over time, a buffer that keeps a state, a convolution of one dimension."""

    def __init__(self):
        super().__init__()
        self.conv, self.cell = nn.Conv1d(4, 8, 3, padding=1), nn.GRU(8, 8, batch_first=True)
        self.register_buffer("state", torch.zeros(1, 6, 8))

    def forward(self, x):
        x, _ = self.cell(self.conv(x).transpose(1, 2))
        self.state.add_(x)
        return self.state * 2


class Branching(nn.Module):
    """Two branches and a shared layer."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        x = self.layer(x)
        return torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: x * 2, (x,))


class Double(nn.Module):
    """A table in double precision, which its user has forgotten."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("table", torch.arange(8.0, dtype=torch.float64))

    def forward(self, x):
        return self.layer(x) * self.table


def sized_layers():
    batch = torch.export.Dim("batch", min=1, max=8)
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Hardswish(), nn.Flatten(), nn.Linear(288, 4))
    return make_model("sized", module, (torch.randn(4, 3, 8, 8),), dynamic_shapes=({0: batch},))


MODELS = {
    "upsampled": lambda: make_model("upsampled", Upsampled(), (torch.randn(1, 3, 8, 8),)),
    "masked": lambda: make_model("masked", Masked(), (torch.randn(2, 6, 16),)),
    "recurrent": lambda: make_model("recurrent", Recurrent(), (torch.randn(1, 4, 6),)),
    "branching": lambda: make_model("branching", Branching(), (torch.randn(3, 8),)),
    "sized": sized_layers,
    "double": lambda: make_model("double", Double(), (torch.randn(3, 8),)),
    "toy_cnn": lambda: wb.load_model("toy_cnn"),
}
#: The linear layers of the others do not divide into groups of 32: upstream's recipe fails.
CASES = [(name, dtype) for name in MODELS for dtype in DTYPES if dtype != "8da4w"]
CASES.append(("toy_cnn", "8da4w"))
#: In CI, floating point and quantised.
IN_CI = {("masked", "fp32"), ("toy_cnn", "int8")}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [pytest.param(*case, marks=pytest.mark.whole if case in IN_CI else pytest.mark.cases)
     for case in CASES],
)  # fmt: skip
def test_a_default_export_is_that_of_the_documented_lines(name, dtype, tmp_path):
    torch.manual_seed(0)
    model = MODELS[name]()
    with warnings.catch_warnings(action="ignore"):
        documented = export_as_documented(model, dtype)
    export = export_quietly(model, tmp_path, dtype=dtype)
    assert export.sha256 == documented
    assert export.changes == "as ExecuTorch exports it"


@pytest.mark.cases
def test_a_dynamic_batch_has_the_limit_that_upstream_gives_it(tmp_path):
    batch = torch.export.Dim("batch", min=1, max=32)
    model = make_model(
        "sized", nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()), (torch.randn(2, 3, 8, 8),),
        dynamic_shapes=({0: batch},),
    )  # fmt: skip
    most = [
        export_quietly(model, tmp_path, rewrite=rewrite).inputs[0].most[0]
        for rewrite in ((), ("batch",))
    ]
    assert most == [15, 32]
