"""Networks of many kinds of layers, and their sidecars."""

import contextlib
import warnings
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

from workbench.export.lower import keep_half_weights
from workbench.export.sidecar import outline_program
from workbench.models.loader import load_model
from workbench.records.codec import to_json


class Residual(nn.Module):
    """3x3 and 1x1 convolutions with batch norm, activations, and an addition around some."""

    def __init__(self, scale=1):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 24, 3, stride=2, padding=1), nn.ReLU6())
        self.squeeze = nn.Conv2d(24, 40 * scale, 1)
        self.norm = nn.BatchNorm2d(40 * scale)
        self.middle = nn.Conv2d(40 * scale, 56, 3, padding=1)
        self.act = nn.Hardswish()
        self.expand = nn.Conv2d(56, 24, 1)
        self.pool = nn.AvgPool2d(2)
        self.head = nn.Linear(24, 17)

    def forward(self, x):
        x = self.stem(x)
        y = self.act(self.middle(functional.relu(self.norm(self.squeeze(x)))))
        x = self.pool(x + self.expand(y))
        return self.head(x.mean((2, 3), keepdim=True).flatten(1))


class Separable(nn.Module):
    """Depthwise and pointwise convolutions of growing width, with padding and clamps apart."""

    def __init__(self):
        super().__init__()
        widths = (3, 20, 36, 52, 76)
        self.blocks = nn.Sequential(
            *(
                nn.Sequential(
                    nn.Conv2d(a, a, 3, padding=1, groups=a, stride=1 + (a == 20)),
                    nn.Conv2d(a, b, 1),
                    (nn.ReLU(), nn.Hardtanh(), nn.Sigmoid(), nn.ELU())[i],
                )
                for i, (a, b) in enumerate(pairwise(widths))
            )
        )
        self.last = nn.Conv2d(76, 84, 3)

    def forward(self, x):
        x = functional.pad(self.blocks(x), (1, 1, 1, 1))
        x = self.last(x)
        return torch.clamp(x * x, max=3.0).reshape(1, 12, -1).reshape(1, 84, -1)


class Unet(nn.Module):
    """Two levels down and up again, with transposed convolutions and concatenated skips."""

    def __init__(self):
        super().__init__()
        self.down1 = nn.Conv2d(3, 12, 3, padding=1)
        self.down2 = nn.Conv2d(12, 20, 3, padding=1)
        self.bottom = nn.Conv2d(20, 28, 3, padding=1)
        self.up2 = nn.ConvTranspose2d(28, 21, 2, stride=2)
        self.merge2 = nn.Conv2d(41, 22, 3, padding=1)
        self.up1 = nn.ConvTranspose2d(22, 14, 2, stride=2)
        self.merge1 = nn.Conv2d(26, 13, 3, padding=1)
        self.out = nn.Conv2d(13, 5, 1)
        self.grow = nn.UpsamplingBilinear2d(scale_factor=2)
        self.pool = nn.MaxPool2d(2)

    def forward(self, x):
        a = functional.relu(self.down1(x))
        b = functional.leaky_relu(self.down2(self.pool(a)))
        y = torch.tanh(self.bottom(self.pool(b)))
        y = functional.relu(self.merge2(torch.cat([b, self.up2(y)], 1)))
        y = functional.relu(self.merge1(torch.cat([a, self.up1(y)], 1)))
        return self.grow(self.out(y))


class Transformer(nn.Module):
    """One block: attention written out, layer norms, a GELU feed-forward part."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(48), nn.LayerNorm(48)
        self.query, self.key = nn.Linear(48, 40), nn.Linear(48, 40)
        self.value, self.project = nn.Linear(48, 56), nn.Linear(56, 48)
        self.up, self.down = nn.Linear(48, 144), nn.Linear(144, 48)
        self.act = nn.GELU()
        self.softmax = nn.Softmax(-1)

    def forward(self, x):
        y = self.norm1(x)
        scores = self.query(y) @ self.key(y).transpose(1, 2)
        x = x + self.project(self.softmax(scores / 6.3) @ self.value(y))
        return x + self.down(self.act(self.up(self.norm2(x))))


class Centred(nn.Module):
    """Convolutions around a mean that no delegate takes: quantised in one, read in another."""

    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 22, 3), nn.Conv2d(22, 18, 1)

    def forward(self, x):
        x = self.stem(x)
        centred = x - x.mean(1, keepdim=True)
        return self.head(centred / torch.sqrt(centred.square().mean(1, keepdim=True) + 1e-6))


IMAGE = (torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0)),)
TOKENS = (torch.randn(1, 19, 48, generator=torch.Generator().manual_seed(0)),)

#: Module, inputs, dtype, and how it is quantised, or that weights stay in half precision.
PROGRAMS = {
    "residual": lambda: (Residual(), IMAGE, "float32", None),
    "residual-wide": lambda: (Residual(scale=8), IMAGE, "float32", None),
    "residual-fp16": lambda: (Residual(), IMAGE, "float16", None),
    "residual-fp16w": lambda: (Residual(), IMAGE, "float16", "half weights"),
    "residual-int8": lambda: (Residual(), IMAGE, "float32", "static"),
    "separable": lambda: (Separable(), IMAGE, "float32", None),
    "separable-fp16": lambda: (Separable(), IMAGE, "float16", None),
    "separable-int8": lambda: (Separable(), IMAGE, "float32", "static"),
    "unet": lambda: (Unet(), IMAGE, "float32", None),
    "unet-fp16": lambda: (Unet(), IMAGE, "float16", None),
    "unet-int8": lambda: (Unet(), IMAGE, "float32", "static"),
    "transformer": lambda: (Transformer(), TOKENS, "float32", None),
    "transformer-fp16": lambda: (Transformer(), TOKENS, "float16", None),
    "transformer-int8": lambda: (Transformer(), TOKENS, "float32", "static"),
    "transformer-int8dyn": lambda: (Transformer(), TOKENS, "float32", "dynamic"),
    "centred-int8": lambda: (Centred(), IMAGE, "float32", "static"),
    "toy_cnn": lambda: (*_registered("toy_cnn"), "float32", None),
    "mobilenet": lambda: (*_registered("mobilenet_v3_small"), "float32", None),
    "mobilenet-fp16": lambda: (*_registered("mobilenet_v3_small"), "float16", None),
}


def export_layers(name, folder):
    """Write a program, its ETRecord, sidecar and inputs."""
    module, inputs, dtype, how = PROGRAMS[name]()
    torch.manual_seed(0)
    dtype = getattr(torch, dtype)
    module, inputs = module.eval().to(dtype), tuple(tensor.to(dtype) for tensor in inputs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = _lower(module, inputs, how)
    (folder / f"{name}.pte").write_bytes(program.buffer)
    program.get_etrecord().save(folder / f"{name}.etrecord")
    (folder / f"{name}.layers.json").write_text(to_json(outline_program(program)))
    raw = inputs[0].contiguous().view(torch.uint8).numpy().tobytes()
    (folder / f"{name}.input").write_bytes(raw)


def _registered(name):
    model = load_model(name)
    return model.module, model.example_inputs


def _lower(module, inputs, how):
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    with torch.no_grad():
        exported = torch.export.export(module, inputs)
        if how in ("static", "dynamic"):
            exported = torch.export.export(_quantize(exported, inputs, how), inputs)
    with keep_half_weights() if how == "half weights" else contextlib.nullcontext():
        edge = to_edge_transform_and_lower(
            exported, partitioner=[XnnpackPartitioner()], generate_etrecord=True
        )
    return edge.to_executorch()


def _quantize(exported, inputs, how):
    from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
        XNNPACKQuantizer,
        get_symmetric_quantization_config,
    )
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    config = get_symmetric_quantization_config(is_per_channel=True, is_dynamic=how == "dynamic")
    quantizer = XNNPACKQuantizer().set_global(config)
    prepared = prepare_pt2e(exported.module(), quantizer)
    prepared(*inputs)
    return convert_pt2e(prepared)
