"""Networks after public threads of people who deploy ExecuTorch, and networks with planted causes.

A line that is the cause is marked; a case says which remedy the findings must name, or what the
error must say where ExecuTorch cannot run the network. ``thread`` is in pytorch/executorch.
"""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._higher_order_ops.while_loop import while_loop
from torch.nn import functional as fn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from function_net import Net

#: Marks the lines of a cause.
MARK = "# cause"


@dataclass(frozen=True)
class Case:
    """A network with its inputs, and what the product must say of it.

    One of ``remedies``, words of a finding or of the ``error``; with none of them, the network is
    fine.
    """

    name: str
    thread: str
    make: Any
    inputs: Any
    dtype: str = "fp32"
    remedies: tuple[str, ...] = ()
    word: str = ""
    error: str = ""
    options: dict[str, Any] = field(default_factory=dict)


def inception(net, x):
    x = torch.relu(net.layers[0](x))
    x = fn.avg_pool2d(x, 3, stride=1, padding=1)  # cause
    return net.layers[1](x)


def same_padding(net, x):
    first, second = net.layers
    return second(fn.relu(first(x)))


def rounded_up(net, x):
    first, second = net.layers
    return second(fn.max_pool2d(first(x).relu(), 3, 2, ceil_mode=True))


def classifier(net, x):
    first, second = net.layers
    return second(first(x).relu().flatten(1))


def warped(net, x, grid):
    x = net.layers[0](x)
    x = fn.grid_sample(x, grid, align_corners=False)  # cause
    return net.layers[1](x)


def spectrogram(net, x):
    power = torch.fft.rfft(x).abs() ** 2.0  # cause
    return (net.layers[0](power) + 1e-6).log()


def buckets(net, x):
    return net.layers[0](torch.bucketize(x, net.borders))  # cause


def shifted(net, tokens):
    return net.layers[0](tokens >> 3)  # cause


def scattered(net, x, places):
    rows = net.layers[0](x)
    return torch.zeros(8, 96).scatter(1, places, rows)


def upsampled(net, x):
    first, grouped, last = net.layers
    x = first(x).relu()
    x = grouped(x).relu()  # cause
    return last(x)


def recurrent(net, x):
    memory, head = net.layers
    states, _ = memory(x)  # cause
    return head(states[:, -1])


def pyramid(net, x):
    first, second, joined, head = net.layers
    high = fn.silu(first(x))
    low = fn.silu(second(high))
    low = fn.interpolate(low, scale_factor=2)  # cause
    boxes = head(fn.silu(joined(torch.cat((low, high), 1)))).sigmoid()
    batch, _, height, width = boxes.shape
    boxes = boxes.view(batch, 3, 6, height, width).permute(0, 1, 3, 4, 2)
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    centres = (boxes[..., :2] * 2 + torch.stack((columns, rows), -1)) * 4
    return torch.cat((centres, (boxes[..., 2:4] * 2) ** 2, boxes[..., 4:]), -1).flatten(1, 3)


def associations(net, x):
    """Attention scaled by a prior of each row."""
    q, k, s = (layer(x) for layer in net.layers)
    q, k = (each.unflatten(-1, (4, 16)).transpose(1, 2) for each in (q, k))
    sigma = (s.transpose(1, 2).unsqueeze(-1) * 0.1).exp().repeat(1, 1, 1, 120)  # cause
    return (q @ k.transpose(-2, -1) * 0.25).softmax(-1) * (1.0 / sigma)  # cause


def perceptron(net, x):
    up, down = net.layers
    return x + down(fn.silu(up(x)))  # cause


def normalised(net, x):
    layer, norm = net.layers
    return norm(layer(x))  # cause


def until(net, x, steps):
    def go_on(step, state):
        return (step < steps).all()

    def advance(step, state):
        return step + 1, net.layers[0](state).tanh()

    return while_loop(go_on, advance, (torch.zeros(1, dtype=torch.int64), x))[1]  # cause


def early_exit(net, x):
    stem, small, large = net.layers
    x = stem(x)
    pick = x.mean() > 9.0
    return torch.cond(pick, lambda y: small(y), lambda y: large(y), (x,))  # cause


def state_space(net, x):
    state, rows = torch.zeros(1, 20), []
    for step in range(x.shape[1]):
        state = state @ net.a + x[:, step] @ net.b  # cause
        rows.append(state @ net.c)  # cause
    return torch.stack(rows, dim=1)


def cached(net, x, place):
    """Attention of one token, whose keys and values are kept for groups of queries."""
    q, k, v = (layer(x).view(1, 1, -1, 32).transpose(1, 2) for layer in net.layers)
    net.keys[:, :, place], net.values[:, :, place] = k, v
    keys = torch.repeat_interleave(net.keys, 4, dim=1)  # cause
    values = torch.repeat_interleave(net.values, 4, dim=1)  # cause
    mask = net.mask[place][None, None]
    return fn.scaled_dot_product_attention(q, keys, values, attn_mask=mask)  # cause


def two_layers(net, x):
    first, second = net.layers
    return second(first(x).relu())


def volume(net, x):
    return net.layers[0](x).relu()  # cause


def encoder(net, tokens, mask=None):
    """Two layers with a mask of what is padding; a dictionary of two outputs."""
    x = net.layers[0](tokens)
    hidden = torch.zeros(mask.shape).masked_fill(mask == 0, -1e9)
    hidden = hidden[:, None, None].expand(-1, 4, 48, 48).reshape(-1, 48, 48)
    for layer in net.layers[1:]:
        x = layer(x, src_mask=hidden)  # cause
    return {"states": x, "mean": x.mean(1)}


def growing(net, x):
    whole = x
    for _ in range(28):
        x = net.layers[0](x).tanh()
        whole = torch.cat((whole, x), dim=1)  # cause
    return whole


def narrow(net, x):
    return torch.cat([layer(x).relu() for layer in net.layers], dim=-1)  # cause


def one_by_one(net, x):
    first, second = net.layers
    rows = []
    for row in range(x.shape[0]):
        rows.append(second(first(x[row : row + 1]).relu()))  # cause
    return torch.cat(rows)


def filtered(net, x):
    """A convolution of 3x3 as a product of a matrix and nine shifted images."""
    x = fn.pad(net.layers[0](x), (1, 1, 1, 1))
    images = [x[:, :, i : i + 40, j : j + 40] for i in range(3) for j in range(3)]  # cause
    columns = torch.stack(images, 2).reshape(1, 90, 1600)  # cause
    return (net.filters @ columns).view(1, 12, 40, 40)  # cause


def doubled(net, x):
    first, second = net.layers
    return second((first(x) * net.table).sigmoid().float())  # cause


def enlarged(net, x):
    first, second = net.layers
    x = first(x)
    return second(fn.interpolate(x, scale_factor=2, mode="bicubic"))  # cause


def channels_normalised(net, x):
    first, norm, second = net.layers
    x = norm(first(x).permute(0, 2, 3, 1))  # cause
    return second(x.permute(0, 3, 1, 2))


def _image(size=64, channels=3):
    return lambda: (torch.randn(1, channels, size, size),)


def _rows(*shape):
    return lambda: (torch.randn(*shape),)


def _branch(*layers):
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def _make_cached():
    layers = nn.Linear(256, 256), nn.Linear(256, 64), nn.Linear(256, 64)
    keys, values = torch.zeros(1, 2, 480, 32), torch.zeros(1, 2, 480, 32)
    mask = torch.ones(480, 480, dtype=torch.bool).tril()
    return Net(cached, *layers, keys=keys, values=values, mask=mask)


def _make_encoder():
    layers = (
        nn.TransformerEncoderLayer(96, 4, 192, batch_first=True, norm_first=True) for _ in range(2)
    )
    return Net(encoder, nn.Embedding(300, 96), *layers)


CASES = (
    Case("int8, even filters", "#20517", lambda: Net(
        same_padding, nn.Conv2d(3, 16, 4, padding="same"), nn.Conv2d(16, 8, 2, padding="same")),
        _image(), "int8"),
    Case("ceil_mode", "#3567", lambda: Net(
        rounded_up, nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 8, 1)), _image(65)),
    Case("dynamic batch", "#8539", lambda: Net(
        classifier, nn.Conv2d(3, 8, 3, 2, 1), nn.Linear(8 * 24 * 24, 10)),
        lambda: (torch.randn(4, 3, 48, 48),), options={"dynamic": True}),
    Case("grid_sample", "#13509", lambda: Net(
        warped, nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 8, 1)),
        lambda: (torch.randn(1, 3, 56, 56), torch.rand(1, 56, 56, 2) * 2 - 1),
        word="grid_sampler_2d"),
    Case("spectrum", "#21950", lambda: Net(spectrogram, nn.Linear(201, 64, bias=False)),
        _rows(120, 400), remedies=("powers", "matrices")),
    Case("bucketize", "#20270", lambda: Net(
        buckets, nn.Embedding(12, 16), borders=torch.linspace(-2, 2, 11)),
        _rows(4, 40), error="bucketize"),
    Case("shift", "#15673", lambda: Net(shifted, nn.Embedding(40, 16)),
        lambda: (torch.randint(0, 320, (4, 40)),), error="rshift"),
    Case("scatter", "#4742", lambda: Net(scattered, nn.Linear(64, 48)),
        lambda: (torch.randn(8, 64), torch.stack([torch.randperm(96)[:48] for _ in range(8)]))),
    Case("int8, grouped deconvolution", "#7640", lambda: Net(
        upsampled, nn.Conv2d(3, 32, 3, 2, 1), nn.ConvTranspose2d(32, 32, 4, 2, 1, groups=4),
        nn.Conv2d(32, 8, 1)), _image(72), "int8", word="group"),
    Case("LSTM", "#7454", lambda: Net(
        recurrent, nn.LSTM(72, 72, batch_first=True), nn.Linear(72, 12)),
        _rows(1, 24, 72), remedies=("slices",)),
    Case("int8, detector's head", "#1330", lambda: Net(
        pyramid, nn.Conv2d(3, 32, 3, 2, 1), nn.Conv2d(32, 64, 3, 2, 1), nn.Conv2d(96, 32, 1),
        nn.Conv2d(32, 18, 1)), _image(96), "int8", remedies=("matrices",)),
    Case("Anomaly Transformer", "#4475", lambda: Net(
        associations, nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 4)),
        _rows(1, 120, 64), remedies=("broadcasts",)),
    Case("bfloat16", "#21859", lambda: Net(
        perceptron, nn.Linear(192, 768), nn.Linear(768, 192)), _rows(1, 48, 192), "bf16",
        remedies=("fp32", "fp16")),
    Case("half precision", "#7748", lambda: Net(
        normalised, nn.Linear(256, 256), nn.LayerNorm(256)).half(),
        lambda: (torch.randn(1, 72, 256).half(),), word="native_layer_norm"),
    Case("while_loop", "#8769", lambda: Net(until, nn.Linear(24, 24)),
        lambda: (torch.randn(4, 24), torch.tensor([8])), error="while_loop"),
    Case("cond", "#8769", lambda: Net(
        early_exit, nn.Conv2d(3, 8, 3, 2, 1),
        nn.Sequential(_branch(), nn.Linear(8, 10)),
        nn.Sequential(_branch(nn.Conv2d(8, 16, 3, 1, 1)), nn.Linear(16, 10))),
        _image(32), error="--backend portable"),
    Case("state space", "#12103", lambda: Net(
        state_space, **{name: torch.randn(20, 20) * 0.1 for name in "abc"}),
        _rows(1, 56, 20), remedies=("loops",)),
    Case("grouped queries, KV cache", "#4461", _make_cached,
        lambda: (torch.randn(1, 1, 256), torch.tensor([80])), remedies=("groups", "masks")),
    Case("int8dyn", "#8830", lambda: Net(two_layers, nn.Linear(64, 160), nn.Linear(160, 24)),
        _rows(1, 64), "int8dyn"),
    Case("int8, padded pooling", "#12134", lambda: Net(
        inception, nn.Conv2d(3, 24, 3, 2, 1), nn.Conv2d(24, 8, 1)), _image(112), "int8",
        remedies=("pooling",)),
    Case("three dimensions", "LiteRT#2573", lambda: Net(volume, nn.Conv3d(3, 8, 3, padding=1)),
        lambda: (torch.randn(1, 3, 8, 24, 24),), error="convolution"),
    Case("encoder", "optimum", _make_encoder,
        lambda: (torch.randint(0, 300, (1, 48)), torch.ones(1, 48, dtype=torch.int64)),
        remedies=("masks", "norms")),
    Case("growing concatenation", "", lambda: Net(growing, nn.Linear(56, 56)),
        _rows(1, 80, 56), remedies=("loops",)),
    Case("narrow layers", "", lambda: Net(narrow, *(nn.Linear(160, 5) for _ in range(28))),
        _rows(1, 96, 160), remedies=("loops",)),
    Case("one sample at a time", "", lambda: Net(
        one_by_one, nn.Linear(288, 576), nn.Linear(576, 288)), _rows(14, 288),
        remedies=("loops",)),
    Case("convolution by hand", "", lambda: Net(
        filtered, nn.Conv2d(3, 10, 1), filters=torch.randn(12, 90) * 0.1), _image(40),
        remedies=("convolutions",)),
    Case("table in double", "", lambda: Net(
        doubled, nn.Linear(80, 160), nn.Linear(160, 40),
        table=torch.linspace(0, 1, 160, dtype=torch.float64)), _rows(1, 240, 80),
        remedies=("doubles",)),
    Case("bicubic", "", lambda: Net(
        enlarged, nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 3, 1)), _image(48),
        remedies=("matrices",)),
    Case("layer norm of channels", "", lambda: Net(
        channels_normalised, nn.Conv2d(3, 64, 4, 4), nn.LayerNorm(64), nn.Conv2d(64, 64, 1)),
        _image(160), remedies=("norms",)),
)  # fmt: skip
