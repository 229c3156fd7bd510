"""Remedies are found by what a graph computes, in several spellings of each kind."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from function_net import Net
from torch import nn
from torch.nn import functional as fn

import workbench as wb
from workbench.analysis.findings.finding import Finding, Gain, apply_trials, rank_findings
from workbench.analysis.findings.text import (
    describe_action,
    describe_gain,
    describe_trial,
    list_code,
    list_commands,
    write_findings,
)
from workbench.analysis.findings_frame import read_trials
from workbench.errors import ExportError, UsageError
from workbench.export.lower import lower_model
from workbench.export.traced import trace_model
from workbench.options import REWRITES, ExportOptions
from workbench.plugins.remedies import remedy_trials
from workbench.plugins.remedies.equivalence import Finder
from workbench.plugins.remedies.rewrite import REWRITER, find_remedies
from workbench.plugins.remedies.subgraphs import Subgraphs
from workbench.plugins.remedies.traced_parts import list_operators
from workbench.records.exports import Rewrite
from workbench.records.trials import Scope, Trial
from workbench.remedies import REMEDIES

torch.manual_seed(0)  # of the buffers below
IMAGE = (1, 16, 12, 16)
ROWS = (1, 24, 32)


def grouped(repeat):
    """Attention whose keys and values are repeated for four queries each."""

    def attend(net, q, k, v):
        k, v = repeat(k), repeat(v)
        return torch.softmax(q @ k.transpose(-2, -1) * 0.2, -1) @ v

    return attend


def blocks(net, x):
    """Each pixel as a block of two by three."""
    return x[:, :, :, None, :, None].expand(1, 16, 12, 2, 16, 3).reshape(1, 16, 24, 48)


def grouped_rows(net, q, k, v):
    """Keys whose heads are repeated before they are an axis of the batch."""
    k, v = (t[:, :, :, None].expand(1, 40, 2, 4, 32).reshape(1, 40, 8, 32) for t in (k, v))
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    result = fn.scaled_dot_product_attention(q, k, v)
    return result.transpose(1, 2).contiguous().view(1, 5, 256)


def grouped_sums(net, q, k):
    return torch.einsum("bhqd,bhkd->bhqk", q, k.repeat_interleave(4, 1))


def expanded(x):
    b, h, n, d = x.shape
    return x[:, :, None].expand(b, h, 4, n, d).reshape(b, 4 * h, n, d)


def by_slices(net, x):
    padded = fn.pad(x, (1, 1, 1, 1))
    parts = [padded[:, :, i : i + 12, j : j + 16] for i in range(3) for j in range(3)]
    return torch.einsum("ock,bckhw->bohw", net.weight.reshape(8, 16, 9), torch.stack(parts, 2))


def by_shifts(net, x):
    """A filter of differences between neighbours."""
    padded = fn.pad(x, (1, 1, 0, 0))
    return padded[..., 2:] * 0.5 - padded[..., :-2] * 0.5 + padded[..., 1:-1] * 0.25


def heads(net, x):
    """One product of each head, in a loop."""
    q, k, v = net.layers[0](x).split(32, -1)
    results = []
    for head in range(4):
        a, b, c = (t[..., head * 8 : head * 8 + 8] for t in (q, k, v))
        results.append(torch.softmax(a @ b.transpose(-2, -1), -1) @ c)
    return torch.cat(results, -1)


def recurrence(net, x):
    state, results = torch.zeros(1, 16), []
    for step in range(x.shape[1]):
        state = torch.tanh(state @ net.a + x[:, step] @ net.b)
        results.append(state @ net.a)
    return torch.stack(results, 1)


def growing(net, x):
    whole = x
    for _ in range(5):
        x = torch.tanh(net.layers[0](x))
        whole = torch.cat((whole, x), 1)
    return whole


def one_by_one(net, x):
    return torch.cat([torch.relu(net.layers[0](x[n : n + 1])) for n in range(x.shape[0])])


def many_layers(net, x):
    return torch.cat([torch.relu(layer(x)) for layer in net.layers], -1)


def residual(net, x):
    """A block and a layer of one image after the other."""
    conv, layer = net.layers
    images = (image.unsqueeze(0) for image in x)
    return torch.stack([layer((conv(one).relu() + one).flatten(1)).squeeze(0) for one in images])


def by_channels(net, x):
    """A convolution of each part of the channels."""
    parts = zip(net.layers, x.chunk(4, 1), strict=True)
    return torch.cat([layer(part) for layer, part in parts], 1)


def mean_of_seen(net, x, mask):
    """The mean of rows whose mask is not negative, as sentence encoders write it."""
    seen = (mask > 0).unsqueeze(-1).expand(x.shape).float()
    return (x * seen).sum(1) / seen.sum(1).clamp(min=1e-9)


def frozen(net, x):
    """A batch norm whose statistics are buffers."""
    scale = net.scale.view(1, -1, 1, 1).rsqrt()
    return net.layers[0](x) * scale - net.mean.view(1, -1, 1, 1) * scale


def shifted(net, x):
    """Channels of the row before, as video networks shift them."""
    y = torch.zeros_like(x)
    y[:, 1:, :8], y[:, :-1, 8:16] = x[:, :-1, :8], x[:, 1:, 8:16]
    y[..., 16:] = x[..., 16:]
    return y


def decoded(net, x):
    """Boxes of a detector, which are decoded in place."""
    y = torch.sigmoid(x)
    y[..., 0:2] = (y[..., 0:2] * 2 - 0.5 + net.grid) * 8
    y[..., 2:4] = (y[..., 2:4] * 2) ** 2
    return y


def rotated(net, x):
    """Pairs of elements, written in turns."""
    y = torch.empty(x.shape)
    y[..., 0::2], y[..., 1::2] = -x[..., 1::2], x[..., 0::2]
    return y


def copied(net, x):
    """A copy that is changed; the tensor itself is read, too."""
    y = x.clone()
    y[..., :3] *= 2.0
    y[:, 0] = x[:, 1]
    return y + x


def padded(net, x):
    canvas = x.new_full((1, 16, 20, 18), 0.5)
    canvas[:, :, 4:16, 1:17] = x
    return canvas


def scaled_in_place(net, x):
    y = x * 1.0
    y[..., :3] *= net.gain
    y[:, 5] += y[:, 4]
    y[:, 7] = 2.0
    y[:, 9] = y[:, 7]
    y[:, 7] = x[:, 0].mean()
    return y


def written_in_a_loop(net, x):
    y = x.new_zeros(1, 6, 32)
    for n in range(6):
        y[:, n] = net.layers[0](x[:, n])
    return y.unsqueeze(2)


def read_between(net, x):
    y = x * 1.0
    y[:, 0] = 0.0
    total = y.sum(1, keepdim=True)
    y[:, 1] = 0.0
    return y + total


def read_later(net, x):
    y = torch.zeros(1, 24, 32)
    row = y[:, 0]
    y[:, 0] = x[:, 1]
    return row * 2


def masked(net, q):
    return fn.scaled_dot_product_attention(q, q, q, attn_mask=net.mask)


QUERY, KEY = (1, 8, 5, 32), (1, 2, 40, 32)


#: By remedy, ways to write what it is for; of each kind, one was written only after its rule.
def one_layer():
    return [nn.Conv2d(16, 16, 3, padding=1)]


def time_mixing(net, key, values):
    """A state that decays: only it waits for the step before, and it begins with zeros."""
    total, count, results = torch.zeros(2, 16), torch.zeros(2, 16), []
    for step in range(key.shape[1]):
        weight = torch.exp(key[:, step])
        results.append((total + weight * values[:, step]) / (count + weight))
        total, count = total * 0.9 + weight * values[:, step], count * 0.9 + weight
    return torch.stack(results, 1)


def from_zeros(net, x):
    """What each step computes of the state before it, which is not returned itself."""
    state, results = torch.zeros(1, 16), []
    for step in x.unbind(1):
        results.append((state - step).tanh())
        state = (state + step) * 0.5
    return torch.stack(results, 1)


def gates(parts):
    """Functions of parts of one tensor, not all of them the same."""
    one, two, three, *rest = parts
    return one.sigmoid() * two.sigmoid() + three.sigmoid() * rest[0].tanh()


KINDS = {
    "pooling": [
        (lambda net, x: fn.avg_pool2d(x, 3, 1, 1), [IMAGE]),
        (lambda net, x: fn.avg_pool2d(x, 3, 2, 1, count_include_pad=False), [IMAGE]),
        (lambda net, x: fn.avg_pool1d(x, 5, 1, 2), [ROWS]),
        (lambda net, x: fn.max_pool1d(x, 3, 2, 1), [ROWS]),
        (lambda net, x: fn.avg_pool2d(x, 3, 2, 1, ceil_mode=True), [(1, 16, 14, 13)]),
        (lambda net, x: fn.avg_pool1d(x, 4, 3, ceil_mode=True), [ROWS]),
        (lambda net, x: x.amax((2, 3)), [IMAGE]),
        (lambda net, x: x.min(dim=1, keepdim=True).values, [ROWS]),
        (lambda net, x: x.topk(1, dim=1)[0], [ROWS]),
        (lambda net, x: fn.adaptive_max_pool2d(x, (4, 8)), [IMAGE]),
    ],
    "matrices": [
        (lambda net, x: x.cumsum(-1), [IMAGE]),
        (lambda net, x: x.flip(2), [IMAGE]),
        (lambda net, x: torch.roll(x, (3, 1), (2, 3)), [IMAGE]),
        (lambda net, x: fn.pad(x, (1, 2, 1, 1), mode="reflect"), [IMAGE]),
        (lambda net, x: fn.pad(x, (2, 2, 0, 1), mode="circular"), [IMAGE]),
        (lambda net, x: fn.interpolate(x, scale_factor=2), [IMAGE]),
        (lambda net, x: fn.interpolate(x, size=(17, 31), mode="bicubic"), [IMAGE]),
        (lambda net, x: fn.adaptive_avg_pool2d(x, 5), [IMAGE]),
        (lambda net, x: fn.avg_pool3d(x, 2), [(1, 3, 8, 8, 6)]),
        (lambda net, x: x[:, torch.tensor([3, 1, 2])], [IMAGE]),
        (lambda net, x: x.tril(), [IMAGE]),
        (lambda net, x: x.sum((1, 3)), [IMAGE]),
        (lambda net, x: x.mean(1, keepdim=True), [IMAGE]),
        (lambda net, x: torch.fft.rfft(x).abs(), [(20, 64)]),
        (lambda net, x: torch.view_as_real(torch.fft.fft(x)), [(4, 64)]),
        (lambda net, x: x.masked_fill(torch.ones(12, 16).triu(1) > 0, -math.inf), [IMAGE]),
        (blocks, [IMAGE]),
        (lambda net, x: x.mean((2, 3), keepdim=True).tile(1, 1, 5, 7), [IMAGE]),
        (lambda net, x: fn.pad(x, (-1, 2, -2, -1)), [IMAGE]),
        (lambda net, x: x.sum(), [ROWS]),
        (lambda net, x: torch.fft.irfft(torch.fft.rfft(x) * net.gains), [(4, 64)],
         {"gains": torch.linspace(1, 0, 33)}),
        (lambda net, x: (lambda z: z.real**2 + z.imag**2)(torch.fft.rfft(x)), [(20, 64)]),
        (lambda net, x: torch.view_as_real(torch.view_as_complex(x) * net.turns), [(1, 9, 16, 2)],
         {"turns": torch.polar(torch.ones(9, 16), torch.randn(9, 16))}),
        (lambda net, x: fn.affine_grid(x.view(2, 2, 3), (2, 3, 6, 8), align_corners=False),
         [(2, 6)]),
        (lambda net, x: fn.affine_grid(x, (1, 3, 4, 6, 8), align_corners=True), [(1, 3, 4)]),
    ],
    "broadcasts": [
        (lambda net, x, s: x * (1.0 / s.exp().repeat(1, 1, 1, 16)), [IMAGE, (1, 16, 12, 1)]),
        (lambda net, x, s: x + s.view(1, 16, 1, 1).expand(1, 16, 12, 16).contiguous(),
         [IMAGE, (16,)]),
        (lambda net, x, s: x - s.view(1, 16, 1, 1).tile(1, 1, 12, 16), [IMAGE, (16,)]),
        (lambda net, x: fn.normalize(x, dim=1), [IMAGE]),
        (mean_of_seen, [ROWS, (1, 24)]),
        (lambda net, x, s: x * (s > 0)[:, None].expand(1, 16, 12, 16).float().mean(2, True),
         [IMAGE, (1, 12, 16)]),
    ],
    "affine": [
        (frozen, [IMAGE], {"scale": torch.rand(8) + 0.5, "mean": torch.randn(8)},
         lambda: [nn.Conv2d(16, 8, 3, bias=False)]),
        (lambda net, x: 2 - net.layers[0](x) * net.gamma, [ROWS], {"gamma": torch.randn(8)},
         lambda: [nn.Linear(32, 8)]),
        (lambda net, x: (net.layers[0](x) - net.mean) / net.scale, [ROWS],
         {"mean": torch.randn(8, 1), "scale": torch.rand(1, 8, 1) + 0.5},
         lambda: [nn.Conv1d(24, 8, 3)]),
    ],
    "assignments": [
        (shifted, [ROWS]),
        (decoded, [(1, 3, 5, 6, 9)], {"grid": torch.randn(5, 6, 2)}),
        (rotated, [ROWS]),
        (padded, [IMAGE]),
        (copied, [ROWS]),
        (scaled_in_place, [ROWS], {"gain": torch.tensor([0.5, 2.0, 3.0])}),
        (written_in_a_loop, [ROWS], {}, lambda: [nn.Linear(32, 32)]),
        (lambda net, x: (lambda y: (y[..., 2:9].mul_(2.0), y[..., 0].add_(1.0), y)[2])(x.clone()),
         [ROWS]),
    ],
    "groups": [
        (grouped(lambda x: x.repeat_interleave(4, 1)), [QUERY, KEY, KEY]),
        (grouped(expanded), [QUERY, KEY, KEY]),
        (lambda net, q, k, v: fn.scaled_dot_product_attention(q, k, v, enable_gqa=True),
         [QUERY, KEY, KEY]),
        (grouped_sums, [QUERY, KEY]),
        (grouped_rows, [(1, 5, 8, 32), (1, 40, 2, 32), (1, 40, 2, 32)]),
        (lambda net, q, k, v: fn.scaled_dot_product_attention(
            q, k.repeat_interleave(4, 1), v.repeat_interleave(4, 1)), [QUERY, KEY, KEY]),
    ],
    "masks": [
        (lambda net, q: fn.scaled_dot_product_attention(q, q, q, is_causal=True), [QUERY]),
        (masked, [QUERY], {"mask": torch.ones(5, 5, dtype=torch.bool).tril()}),
        (masked, [QUERY], {"mask": torch.randn(1, 1, 5, 5)}),
        (lambda net, x, s: x.masked_fill(s > 0, -math.inf).softmax(-1), [IMAGE, (1, 1, 1, 16)]),
        (lambda net, x, s: torch.where(s > 0, x, 0.5), [IMAGE, (1, 1, 12, 16)]),
    ],
    "functions": [
        (lambda net, x: 1.0 / x, [IMAGE]),
        (lambda net, x: 3.0**x, [ROWS]),
        (lambda net, x: fn.softplus(x), [IMAGE]),
        (lambda net, x: fn.mish(x), [IMAGE]),
        (lambda net, x: fn.elu(x), [IMAGE]),
        (lambda net, x: torch.where(x > 0, x, 0.1 * x), [IMAGE]),
        (lambda net, x: x * torch.clamp(x + 3, 0, 6) / 6, [IMAGE]),
        (lambda net, x: fn.celu(x, 0.5), [IMAGE]),
        (lambda net, x: fn.softplus(x, beta=2), [IMAGE]),
        (lambda net, x: torch.where(x > 0, x, x.exp() - 1), [IMAGE]),
        (lambda net, x: torch.where(x < 1, x, 1.0), [IMAGE]),
        (lambda net, x: (x.abs() + 0.1) ** 1.5, [ROWS]),
        (lambda net, x: x**5, [ROWS]),
        (lambda net, x: (x.abs() + 0.1) ** -2, [ROWS]),
        (lambda net, x: (x.abs() + 0.1) ** net.powers, [ROWS], {"powers": torch.rand(32)}),
        (lambda net, x: x % 1.0, [ROWS]),
        (lambda net, x: torch.sinh(x), [ROWS]),
        (lambda net, x: torch.sign(x), [ROWS]),
        (lambda net, x: x.log_softmax(-1), [ROWS]),
        (lambda net, x: x.logsumexp((2, 3)), [IMAGE]),
        (lambda net, x: (fn.max_pool2d(x, 3, 1, 1) == x).float() * x, [IMAGE]),
        (lambda net, x: x * (fn.max_pool2d(x, 3, 1, 1) != x), [IMAGE]),
        (lambda net, x, y: torch.where(x >= y, x, y * 2), [ROWS, ROWS]),
        (lambda net, x, y: x.masked_fill((x > 0.2) & ~(y < 0.5), -1e4), [ROWS, ROWS]),
        (lambda net, x, y: ((x <= 0) | (y > x)).type_as(x), [ROWS, ROWS]),
        (lambda net, x, y: torch.where(x > 0, x, y), [ROWS, (1, 1, 1)]),
    ],
    "softmax_axis": [
        (lambda net, x: x.softmax(1), [IMAGE]),
        (lambda net, x: x.softmax(-2), [ROWS]),
    ],
    "products": [
        (lambda net, a, b: torch.mm(a[0], b[0].t()), [ROWS, ROWS]),
        (lambda net, q, k: q @ k.transpose(-2, -1), [QUERY, (1, 8, 40, 32)]),
        (lambda net, x: x @ x.transpose(1, 2), [ROWS]),
        (lambda net, q, k: q @ k.transpose(-2, -1), [(2, 8, 5, 32), (2, 1, 40, 32)]),
    ],
    "slices": [
        (lambda net, x: x[:, 2::3], [ROWS]),
        (lambda net, x: x[..., 1::2], [(1, 3, 11)]),
        (lambda net, x: x.unsqueeze(1).exp().squeeze(1), [ROWS]),
        (lambda net, x: torch.cat((x[:, 0], x[:, 3]), -1), [ROWS]),
        (lambda net, x: x.unfold(-1, 10, 4) * net.window, [(2, 43)], {"window": torch.rand(10)}),
        (lambda net, x: x.unfold(1, 2, 2).flatten(2), [ROWS]),
    ],
    "norms": [
        (lambda net, x: net.layers[0](x), [IMAGE], {}, lambda: [nn.GroupNorm(4, 16)]),
        (lambda net, x: net.layers[0](x), [IMAGE], {}, lambda: [nn.InstanceNorm2d(16)]),
        (lambda net, x: net.layers[0](x), [ROWS], {}, lambda: [nn.RMSNorm(32)]),
        (lambda net, x: net.layers[0](x), [IMAGE], {}, lambda: [nn.LayerNorm((12, 16))]),
        (lambda net, x: x.var(-1), [IMAGE]),
        (lambda net, x: x.std((2, 3), keepdim=True), [IMAGE]),
        (lambda net, x: torch.linalg.vector_norm(x, dim=1), [IMAGE]),
        (lambda net, x: x / x.norm(p=1, dim=-1, keepdim=True), [ROWS]),
        (lambda net, x: torch.linalg.norm(x, dim=(1, 2)), [ROWS]),
        (lambda net, x, y: fn.cosine_similarity(x, y, dim=1), [ROWS, ROWS]),
        (lambda net, x: fn.cosine_similarity(x[:, None], x[:, :, None], dim=-1), [ROWS]),
        (lambda net, x: fn.cosine_similarity(x[:, :, None], x.unsqueeze(3), dim=1), [ROWS]),
        (lambda net, x: torch.cat(torch.var_mean(x, 2)), [IMAGE]),
    ],
    "loops": [
        (growing, [ROWS], {}, lambda: [nn.Linear(32, 32)]),
        (one_by_one, [(6, 32)], {}, lambda: [nn.Linear(32, 8)]),
        (one_by_one, [(6, 3, 8, 8)], {}, lambda: [nn.Conv2d(3, 8, 3)]),
        (lambda net, x: torch.stack([net.layers[0](part[None])[0] for part in x]), [(5, 3, 8, 8)],
         {}, lambda: [nn.Conv2d(3, 8, 3)]),
        (lambda net, x: torch.stack([net.layers[0](part[None]).squeeze(0) for part in x]),
         [(5, 3, 8, 8)], {}, lambda: [nn.Conv2d(3, 8, 3)]),
        (many_layers, [ROWS], {}, lambda: [nn.Linear(32, 6) for _ in range(8)]),
        (heads, [ROWS], {}, lambda: [nn.Linear(32, 96)]),
        (residual, [(5, 3, 8, 8)], {}, lambda: [nn.Conv2d(3, 3, 3, padding=1), nn.Linear(192, 9)]),
        (by_channels, [IMAGE], {}, lambda: [nn.Conv2d(4, 2, 3, stride=2) for _ in range(4)]),
        (by_channels, [ROWS], {}, lambda: [nn.Conv1d(6, 6, 3, bias=False) for _ in range(4)]),
        (recurrence, [(1, 20, 16)], {"a": torch.randn(16, 16) / 8, "b": torch.randn(16, 16) / 8}),
        (time_mixing, [(2, 12, 16), (2, 12, 16)]),
        (from_zeros, [(1, 12, 16)]),
        (lambda net, x: gates(x.chunk(4, -1)), [ROWS]),
        (lambda net, x: gates(x.unbind(1)), [(2, 4, 8)]),
    ],
    "convolutions": [
        (by_slices, [IMAGE], {"weight": torch.randn(8, 16, 3, 3) / 12}),
        (lambda net, x: (net.weight.reshape(8, -1) @ fn.unfold(x, 3, padding=1)), [IMAGE],
         {"weight": torch.randn(8, 16, 3, 3) / 12}),
        (lambda net, x: (net.weight.reshape(8, -1) @ fn.unfold(x, 3, dilation=2)), [IMAGE],
         {"weight": torch.randn(8, 16, 3, 3) / 12}),
        (by_shifts, [IMAGE]),
        (lambda net, x: fn.unfold(x, 4, stride=4).transpose(1, 2), [IMAGE]),
        (lambda net, x: (net.weight.reshape(8, -1) @ fn.unfold(x, 2, stride=2)).view(1, 8, 6, 8),
         [IMAGE], {"weight": torch.randn(8, 16, 2, 2) / 8}),
        (lambda net, x: sum(net.taps[n] * fn.pad(x, (3, 0))[..., n : n + 32] for n in range(4)),
         [ROWS], {"taps": torch.randn(4, 24, 1)}),
    ],
    "layouts": [
        (lambda net, x: net.layers[0](x).sigmoid() * 0.5 + 1, [IMAGE], {}, one_layer),
        (lambda net, x: (1 - net.layers[0](x).sigmoid()) / net.scale, [IMAGE],
         {"scale": torch.rand(()) + 1}, one_layer),
        (lambda net, x: torch.maximum(net.layers[0](x), net.scale) - 2.0, [IMAGE],
         {"scale": torch.rand(16, 1, 1)}, one_layer),
        (lambda net, x: torch.add(net.scale / (net.layers[0](x) ** 2 + 1), x, alpha=1), [IMAGE],
         {"scale": torch.rand(1, 1)}, one_layer),
        (lambda net, x: fn.max_pool2d(x, 2).tanh().mul(net.scale.relu()[0]), [IMAGE],
         {"scale": torch.rand(2)}),
    ],
}  # fmt: skip
CASES = [(name, number) for name, cases in KINDS.items() for number in range(len(cases))]


def make(name, number):
    function, shapes, *more = KINDS[name][number]
    torch.manual_seed(0)
    buffers = more[0] if more else {}
    layers = more[1]() if len(more) > 1 else []
    inputs = tuple(torch.randn(shape) for shape in shapes)
    return Net(function, *layers, **buffers).eval(), inputs


BRIEF = {
    "toggle": "none", "processes": 2, "runs": 4, "evidence": False, "cold_start": False,
    "roof": False,
}  # fmt: skip


def measure(module, inputs, root, **options):
    """A short run of a network, with the remedies that its export offers."""
    export = ExportOptions(**options)
    program = wb.export_model(module.eval(), inputs, export, root=root, progress=quiet)
    brief = wb.MeasureOptions(**BRIEF)
    return wb.measure(program, options=brief, root=root, progress=quiet, artifacts=False)


def calls(exported):
    return [node for node in exported.graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize(("name", "number"), CASES)
def test_a_kind_is_found_and_its_replacement_computes_the_same(name, number):
    """It is shown to be equal before it is offered, and as a part of the program."""
    module, inputs = make(name, number)
    exported = torch.export.export(module, inputs)
    finder = Finder(exported)
    parts = list(find_remedies(finder, [name], "xnnpack"))
    assert parts, "nothing was found"
    for part in parts:
        proven = finder.prove(part) if math.isnan(part.sqnr_db) else part
        assert REMEDIES[name].differs or proven.sqnr_db > 80
    expected = module(*inputs)
    counts = REWRITER.apply(exported, [name], "xnnpack")
    assert counts[name] >= 1
    result = exported.module()(*inputs)
    finite = expected.isfinite()
    assert torch.equal(finite, result.isfinite())
    scale = float(expected[finite].abs().max())
    assert float((result[finite] - expected[finite]).abs().max()) < 2e-5 * max(scale, 1.0)


def test_samples_of_a_loop_become_one_batch():
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 3, 3, padding=1), nn.Linear(192, 9)
    exported = torch.export.export(Net(residual, *layers).eval(), (torch.randn(5, 3, 8, 8),))
    (part,) = find_remedies(Finder(exported), ["loops"], "xnnpack")
    assert len(list_operators(part)) == 4, "a convolution, ReLU, sum and linear layer"


DIFFERENT = {
    "matrices": (lambda net, x: x.cumsum(-1) * x.cumprod(-1), [IMAGE]),
    "broadcasts": (lambda net, x, s: x * s.expand(1, 24, 32).sum(1, True), [ROWS, (1, 1, 32)]),
    "affine": (lambda net, x: fn.linear(x, torch.ones(8, 32)) * torch.ones(24, 8).tril(), [ROWS]),
    "groups": (grouped(lambda x: x), [QUERY, (1, 8, 40, 32), (1, 8, 40, 32)]),
    "functions": (lambda net, x, y: x.masked_fill(y > x, -math.inf) + torch.erf(x), [ROWS, ROWS]),
    "loops": (lambda net, x: torch.cat([x[:1].exp(), x[1:].sin()]), [(4, 8)]),
    "convolutions": (lambda net, x: fn.relu(x[..., 1:] - x[..., :-1]).sum(-1), [IMAGE]),
    "pooling": (lambda net, x: fn.lp_pool2d(x, 2, 3), [IMAGE]),
    "norms": (lambda net, x: x.norm(p=3, dim=-1), [IMAGE]),
    "masks": (lambda net, x, s: x.masked_fill(s > 0, -math.inf), [IMAGE, (1, 1, 1, 16)]),
    "slices": (lambda net, x: x[:, 1::5].unfold(1, 3, 1), [ROWS]),
    "layouts": (
        lambda net, x: fn.conv2d(x, torch.ones(4, 16, 1, 1)) * torch.ones(1, 4, 1, 1),
        [IMAGE],
    ),
    "products": (lambda net, a, b: a @ b.transpose(1, 2), [(2, 5, 8), (1, 4, 8)]),
}


def assigned(x):
    """What a step of a loop writes into a tensor is read after it was written."""
    results = torch.zeros(4, 6, 8)
    for step in range(6):
        results[:, step] = torch.tanh(x + step)
    return results * 2


def test_constants_of_a_program_without_inputs_keep_their_order():
    def table(net):
        pe = torch.zeros(8, 6)
        places = torch.arange(8.0)[:, None] * torch.arange(3.0)
        pe[:, 0::2], pe[:, 1::2] = places.sin(), places.cos()
        return pe

    exported = torch.export.export(Net(table).eval(), ())
    assert REWRITER.apply(exported, ["assignments"], "xnnpack")
    assert torch.equal(exported.module()(), table(None))


def test_what_is_computed_twice_and_read_once_is_no_duplicate():
    def snake(net, x):
        torch.sin(net.rate * x)  # upstream drops it
        return x + torch.sin(net.rate * x) ** 2

    exported = torch.export.export(Net(snake, rate=torch.tensor(0.5)).eval(), (torch.randn(ROWS),))
    assert not REWRITER.apply(exported, ["duplicates"], "xnnpack")["duplicates"]


def test_what_is_assigned_into_a_tensor_is_kept():
    x = torch.randn(4, 8)
    exported = torch.export.export(Net(lambda net, x: assigned(x)).eval(), (x,))
    REWRITER.apply(exported, [*KINDS], "xnnpack")
    torch.testing.assert_close(exported.module()(x), assigned(x))


#: Functions whose guard decides for the numbers beside them.
GUARDED = [
    (lambda x: torch.sqrt(x + 1e-6), 0.0),
    (lambda x: torch.log10(x.abs() + 1e-10), 0.0),
    (lambda x: torch.where(x < 1.0, x, 1.0), -1e6),
    (lambda x: torch.nan_to_num(x) * 1.0, math.inf),
    (lambda x: x.clamp(-65504.0, 65504.0) * 1.0, 1e6),
    (lambda x: x.reciprocal().clamp(max=1e9), 0.0),
]


@pytest.mark.parametrize("number", range(len(GUARDED)))
def test_guards_are_kept(number):
    function, critical = GUARDED[number]
    exported = torch.export.export(Net(lambda net, x: function(x)).eval(), (torch.randn(3, 32),))
    REWRITER.apply(exported, [*KINDS], "xnnpack")
    x = torch.full((3, 32), critical)
    torch.testing.assert_close(exported.module()(x), function(x), rtol=1e-4, atol=0.0)


@pytest.mark.whole
def test_an_operator_without_a_kernel_has_its_remedy_in_the_error(tmp_path):
    module = Net(lambda net, x: fn.avg_pool3d(x, 2)).eval()
    with pytest.raises(ExportError, match=r"no kernel for aten::avg_pool3d.*--rewrite matrices"):
        wb.export_model(module, torch.randn(1, 2, 4, 4, 4), root=tmp_path, progress=quiet)
    module = Net(lambda net, x: torch.fft.irfft(torch.fft.rfft(x) * 0.5)).eval()
    said = r"aten::mul.out fails in .*ComplexFloat.*--rewrite \S*matrices\S* may avoid it"
    with pytest.raises(ExportError, match=said):
        wb.export_model(module, torch.randn(4, 64), root=tmp_path, progress=quiet)
    module = Net(lambda net, x: x.max(-1)[0]).eval()
    with pytest.raises(ExportError, match=r"lowering: .*keep_dim.*--rewrite pooling may avoid it"):
        wb.export_model(module, torch.randn(1, 2, 4, 4), root=tmp_path, progress=quiet)
    module = Net(lambda net, x: x.sort(-1)[0]).eval()
    with pytest.raises(ExportError, match=r"aten::sort.*topk"):
        wb.export_model(module, torch.randn(2, 8), root=tmp_path, progress=quiet)


@pytest.mark.parametrize("function", [
    read_between, read_later,
    lambda net, x: torch.zeros(1, 24, 24).diagonal(0, 1, 2).copy_(x[..., 0]),
    lambda net, x: (x * 1.0).index_fill_(1, torch.tensor([3]), 0.0).sub_(1.0),
])  # fmt: skip
def test_assignments_whose_order_counts_stay(function):
    module, x = Net(function).eval(), torch.randn(ROWS)
    exported = torch.export.export(module, (x,))
    assert not REWRITER.apply(exported, ["assignments"], "xnnpack")
    torch.testing.assert_close(exported.module()(x), module(x))


@pytest.mark.parametrize("function", [
    lambda net, x: (fn.silu(x * 1.5, inplace=True), x * 2)[1],
    lambda net, x: (lambda y: (fn.silu(y, inplace=True), y * 2)[1])(x * 1.5),
    lambda net, x: (lambda y: (fn.silu(y[:, 1:], inplace=True), y + 1)[1])(x * 1.5),
    lambda net, x: (lambda y: (y[:, 3].pow_(2), y + y[:, 2:3].neg_())[1])(x * 1.5),
])  # fmt: skip
def test_who_reads_what_is_overwritten_reads_its_replacement(function):
    module, x = Net(function).half().eval(), torch.rand(ROWS).half()
    exported = torch.export.export(module, (x,))
    REWRITER.apply(exported, [*REMEDIES.keys() & REWRITER.names], "xnnpack")
    torch.testing.assert_close(exported.module()(x), module(x), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_computes_something_else_stays(name):
    function, shapes = DIFFERENT[name]
    torch.manual_seed(0)
    inputs = tuple(torch.randn(shape) for shape in shapes)
    exported = torch.export.export(Net(function).eval(), inputs)
    REWRITER.apply(exported, [name], "xnnpack")
    torch.testing.assert_close(exported.module()(*inputs), function(None, *inputs))


@pytest.mark.parametrize("function", [
    lambda x: x.unflatten(-1, (4, 8)), lambda x: x[None].squeeze(0), lambda x: x.narrow(1, 3, 7),
    lambda x: x.ravel(), lambda x: x.movedim(1, -1), lambda x: x.mT,
])  # fmt: skip
def test_what_only_arranges_data_is_no_product(function):
    exported = torch.export.export(Net(lambda net, x: function(x).relu()), (torch.randn(ROWS),))
    assert not REWRITER.apply(exported, ["matrices"], "xnnpack")["matrices"]


def test_a_mapped_function_is_kept_whole():
    """Masks of transformers are made by a vmap, whose ends nobody reads."""

    def mask(net, x):
        rows, columns = torch.arange(4), torch.arange(8)
        seen = torch.vmap(torch.vmap(lambda r, c: c <= r, (None, 0)), (0, None))(rows, columns)
        return fn.avg_pool1d(x, 3, 1, 1).masked_fill(~seen, -1e9)

    module, x = Net(mask).eval(), torch.randn(1, 4, 8)
    exported = torch.export.export(module, (x,))
    assert REWRITER.apply(exported, ["pooling"], "xnnpack")["pooling"] == 1
    torch.testing.assert_close(exported.run_decompositions({}).module()(x), module(x))


def test_double_constants_become_single():
    module = Net(
        lambda net, x: (x * net.table).sum(-1).float(),
        table=torch.linspace(0, 1, 32, dtype=torch.float64),
    )
    x = torch.randn(4, 32)
    exported = torch.export.export(module, (x,))
    assert REWRITER.apply(exported, ["doubles"], "xnnpack")["doubles"]
    dtypes = {node.meta["val"].dtype for node in calls(exported) if node.meta["val"] is not None}
    assert dtypes == {torch.float32}
    torch.testing.assert_close(exported.module()(x), module(x), rtol=1e-5, atol=1e-5)


def biased(net, q, x):
    """Attention with a mask of the model's own, beside a table that no remedy is about."""
    mask = (torch.arange(5)[:, None] - torch.arange(5)).clamp(-2, 2) * net.slope
    table = (torch.arange(32) * net.slope).cos()
    return fn.scaled_dot_product_attention(q, q, q, attn_mask=mask), x * table


def make_biased():
    return Net(biased, slope=torch.tensor(0.3)).eval(), (torch.randn(QUERY), torch.randn(ROWS))


def test_only_what_a_remedy_reads_is_computed_by_the_export():
    module, inputs = make_biased()
    exported = torch.export.export(module, inputs)
    assert REWRITER.apply(exported, ["masks"], "xnnpack")["masks"]
    names = [str(node.target) for node in calls(exported)]
    assert "aten.clamp.default" not in names and "aten.cos.default" in names
    torch.testing.assert_close(exported.module()(*inputs), module(*inputs), rtol=1e-4, atol=1e-5)


def test_what_a_part_reads_of_constants_alone_belongs_to_it():
    module, inputs = make_biased()
    model = wb.load_model(module, inputs)
    exported = trace_model(model).exported
    names = [node.name for node in calls(exported) if "attention" in node.name]
    part = Subgraphs(model, exported, [names]).extract(names)
    assert [tuple(each.shape) for each in part.example_inputs] == [QUERY]
    torch.testing.assert_close(part.module(*part.example_inputs), module(*inputs)[0])


#: A network whose remedy is tried in a dtype, the remedy, and what it is run on.
TRIED = {
    "int8": ("matrices", IMAGE, lambda net, x: net.layers[1](fn.interpolate(
        fn.silu(net.layers[0](x)), scale_factor=2)), lambda: [nn.Conv2d(16, 8, 1),
        nn.Conv2d(8, 4, 1)]),
    "int8dyn": ("norms", ROWS, lambda net, x: net.layers[1](net.layers[0](x)), lambda: [
        nn.Linear(32, 64), nn.LayerNorm(64)]),
    "fp32": ("slices", ROWS, lambda net, x: net.layers[1](net.layers[0](x)[0]), lambda: [
        nn.LSTM(32, 32, batch_first=True), nn.Linear(32, 8)]),
}  # fmt: skip


@pytest.mark.cases
@pytest.mark.parametrize(
    "dtype",
    ["int8dyn", *(pytest.param(name, marks=pytest.mark.cases) for name in ("int8", "fp32"))],
)
def test_a_remedy_is_tried_and_applied_in_the_dtype_of_the_program(dtype, tmp_path):
    """Where a part has nothing to quantise, what is around it is quantised with it."""
    remedy, shape, function, make_layers = TRIED[dtype]
    torch.manual_seed(0)
    module, x = Net(function, *make_layers()), torch.randn(shape)
    run = measure(module, x, tmp_path, dtype=dtype)
    checks = [each for each in wb.check_findings(run, top=9) if each.remedy == remedy]
    assert checks and not any(each.problem for each in checks)
    options = ExportOptions(dtype=dtype, rewrite=(remedy,))
    better = wb.export_model(module, x, options, root=tmp_path, progress=quiet).export
    assert better.rewrite == (remedy,) and better.sqnr_db > 30


def overwritten(net, x):
    """Two equal tensors, each of which is overwritten."""
    one, other = torch.zeros(4, 8), torch.zeros(4, 8)
    return one.add_(x), other.add_(x * 2)


@pytest.mark.parametrize(
    ("function", "count"),
    [
        (lambda net, x: (net.layers[0](x), net.layers[0](x).relu()), 1),
        (lambda net, x: (x.exp().sum(-1), x.exp().sum(-1) + x.exp().sum(-1)), 4),
        (lambda net, x: (x.exp(), (x + 1.0).exp()), 0),
        (lambda net, x: (torch.dropout(x, 0.5, True), torch.dropout(x, 0.5, True)), 0),
        (overwritten, 0),
    ],
)
def test_what_is_computed_twice_is_computed_once(function, count):
    module, x = Net(function, nn.Linear(8, 8)).eval(), torch.randn(4, 8)
    exported = torch.export.export(module, (x,))
    assert REWRITER.apply(exported, ["duplicates"], "xnnpack")["duplicates"] == count
    torch.manual_seed(0)
    expected = module(x)
    torch.manual_seed(0)
    torch.testing.assert_close(exported.module()(x), expected)


@pytest.mark.whole
def test_what_the_export_can_compute_is_no_duplicate(tmp_path):
    steps = lambda x: torch.linspace(0, 1, x.shape[-1])  # noqa: E731
    module = Net(lambda net, x: (x * steps(x)).exp() + steps(x)).eval()
    program = wb.export_model(module, torch.randn(4, 64), root=tmp_path, progress=quiet)
    assert "duplicates" not in {rewrite.name for rewrite in program.export.rewrites}


def test_every_remedy_has_its_code_and_its_name():
    """What has no code for a person is a matter of the quantiser, or of PyTorch's libraries."""
    assert {*REMEDIES} == {*REWRITES}
    without = {name for name, remedy in REMEDIES.items() if not remedy.code}
    assert without == {"batch", "sums", "concatenations", "scalars", "readers", "linears"}
    assert ExportOptions(rewrite=("pooling",)).rewrite == ("pooling",)


@pytest.fixture
def in_parts(monkeypatch):
    """Small programs are tried in parts, too."""
    monkeypatch.setattr(remedy_trials, "SMALL_OPERATORS", 0)


@pytest.mark.whole
def test_a_promise_is_tried_on_its_part_and_kept_with_the_run(tmp_path, in_parts):
    """Padded, an average pooling runs outside of delegates, and a convolution is faster."""
    torch.manual_seed(0)
    stem, head = nn.Conv2d(3, 16, 3, 2, 1), nn.Conv2d(16, 4, 1)
    module = Net(lambda net, x: head(fn.avg_pool2d(stem(x).relu(), 3, 1, 1)), stem, head).eval()
    run = measure(module, torch.randn(1, 3, 64, 64), tmp_path)
    assert run.subject.export.rewrites[0].name == "pooling"
    (promise,) = find(run, "pooling")
    assert promise.gain.basis not in ("checked", "measured") and promise.trial is None
    table = run.findings.check()
    (kept,) = find(wb.open_run(run.path), "pooling")
    assert table.query("remedy == 'pooling'")["basis"].item() == kept.gain.basis == "checked"
    assert 0 < kept.gain.low < kept.gain.ms < kept.gain.high
    assert describe_trial(kept).startswith("on this part, ")
    trial = kept.trial
    assert trial.kernels == (1, 0) and trial.sqnr_db > 100 and trial.restarts >= 4
    assert trial.finding == promise.id == kept.id and trial.scope == run.subject.scope
    assert wb.check_findings(run, finding=promise.id)[0].finding == promise.id, "asked for again"
    with pytest.raises(UsageError, match="unknown finding 'poling'"):
        wb.check_findings(run, finding="poling")

    assert describe_trial(kept).endswith(f"; this took {kept.trial.seconds:.0f} s")

    def keep(**changes):
        run.keep(replace(trial, seconds=0.0, **changes))
        (finding,) = find(wb.open_run(run.path), "pooling")
        return finding

    untried = keep(problem="these operators do not run alone")
    assert untried.gain == promise.gain
    assert "   tried: not tried: these operators do not run alone" in write_findings([untried])
    open_one = keep(gain_ms=0.1, low_ms=-0.1, high_ms=0.3, tried=2, parts=24)
    assert open_one.gain.basis == "unknown" and "2 of 24 parts" in describe_trial(open_one)
    assert describe_gain(open_one).startswith("not shown: between \N{MINUS SIGN}0.100")
    (again,) = list_commands(open_one)
    assert again == f'wb.check_findings(run, net, x, finding="{promise.id}", budget_s=60)'
    loses = keep(gain_ms=-1.0, low_ms=-1.1, high_ms=-0.9)
    assert loses.gain.basis == "refused" and "does not help" in describe_trial(loses)
    assert describe_gain(loses) == "none" and not list_commands(loses) and not list_code(loses)
    assert wb.open_run(run.path).opportunities[-1].id == loses.id, "it comes last"
    tiny = 0.005 * run.subject.latency_ms
    small = keep(gain_ms=tiny, low_ms=0.9 * tiny, high_ms=1.1 * tiny)
    assert small.gain.basis == "refused" and describe_gain(small) == "less than 1 %"
    wrong = "output 0 is not the model's: SQNR 2.7 dB, at least 60 expected"
    differs = keep(problem=wrong, differs=True)
    assert describe_trial(differs).endswith(wrong) and not list_code(differs)
    # As of a busy moment.
    slower = keep(before_ms=1000.0, after_ms=10.0, gain_ms=990.0, low_ms=900.0, high_ms=1100.0)
    limit = min(max(promise.gain.high, promise.most_ms), 0.99 * run.subject.latency_ms)
    assert slower.gain.ms == pytest.approx(limit), "what its rows take"
    assert slower.gain.low < slower.gain.ms <= slower.gain.high <= run.subject.latency_ms


def find(run, remedy):
    """The findings with a remedy."""
    return [each for each in run.opportunities if each.remedy == remedy]


class Counted(Net):
    """A network that counts how often its code runs."""

    calls = 0

    def forward(self, *x):
        Counted.calls += 1
        return super().forward(*x)


@pytest.mark.cases
def test_an_interruption_keeps_the_checks_before_and_a_profile_loads_once(
    tmp_path, monkeypatch, in_parts
):
    """A profile traces the model for its checks, and does not run it otherwise."""
    monkeypatch.setattr("workbench.workflow.CHECKED_S", 600.0)
    torch.manual_seed(0)
    stem, head = nn.Conv2d(3, 16, 3, 2, 1), nn.Conv2d(16, 4, 1)

    def pool(net, x):
        x = fn.pad(stem(x).relu(), (2, 2, 2, 2), mode="reflect")
        return head(fn.avg_pool2d(x, 3, 1, 1))

    calls = {}

    def interrupt(text, fraction):
        stage = text.partition(": ")[2]
        calls.setdefault(stage.partition(":")[0], Counted.calls)
        if sum(name.startswith("trying ") for name in calls) == 2:
            raise KeyboardInterrupt

    brief = wb.MeasureOptions(processes=2, runs=4, cold_start=False, roof=False)
    module, image = Counted(pool, stem, head).eval(), torch.randn(1, 3, 96, 96)
    with pytest.raises(KeyboardInterrupt):
        wb.profile(module, image, measure=brief, root=tmp_path, progress=interrupt)
    assert {"trying pooling", "trying matrices"} < calls.keys()
    assert calls["trying pooling"] == Counted.calls == calls["loading the model"] + 1
    (folder,) = (tmp_path / "runs").iterdir()
    (kept,) = read_trials(folder)
    assert kept.gain_ms and not kept.problem


def try_remedy(module, inputs, remedy, root, **options):
    """The check of a network's remedy, and what its finding then advises."""
    run = measure(module, inputs, root, **options)
    (check,) = (each for each in wb.check_findings(run, top=9) if each.remedy == remedy)
    findings = wb.open_run(run.path).opportunities
    return check, "; ".join(map(describe_trial, findings))


@pytest.mark.cases
@pytest.mark.parametrize(("small", "tried"), [(0, 2), pytest.param(1, 3, marks=pytest.mark.cases)])
def test_of_parts_that_are_alike_two_are_tried(small, tried, tmp_path, in_parts):
    """Each kind has one part among those that are tried, and the rest gains as much."""
    torch.manual_seed(0)

    def pool(net, x):
        for place, layer in enumerate(net.layers):
            x = fn.avg_pool2d(layer(x).relu(), 3, 1, 1)
            x = fn.max_pool2d(x, 2) if place == len(net.layers) - 1 - small else x
        return x

    module = Net(pool, *(nn.Conv2d(8, 8, 1) for _ in range(12)))
    check, advice = try_remedy(module, torch.randn(1, 8, 48, 48), "pooling", tmp_path)
    assert (check.tried, check.parts, check.kernels) == (tried, 12, (tried, 0))
    assert f"on {tried} of 12 parts" in advice
    saved = check.before_ms - check.after_ms
    assert check.gain_ms == pytest.approx((11.25 / 2.25 if small else 6) * saved)
    assert check.low_ms < check.gain_ms < check.high_ms


@pytest.mark.cases
@pytest.mark.parametrize("dtype", ["fp32", "8da4w"])
def test_a_small_program_is_tried_as_a_whole(dtype, tmp_path):
    torch.manual_seed(0)

    def root(net, x):
        return net.layers[1](net.layers[0](x).relu() ** 0.5)

    module, x = Net(root, nn.Linear(64, 64), nn.Linear(64, 64)), torch.randn(1, 8, 48, 64)
    check, advice = try_remedy(module, x, "powers", tmp_path, dtype=dtype)
    assert check.whole and check.tried == check.parts == 1 and check.kernels[1] == 0
    assert "on the whole program" in advice
    assert check.high_ms - check.low_ms >= 2 * remedy_trials.OF_PROGRAM * check.before_ms


def made_trial(remedy, finding, scope):
    """A trial that gains 0.1 of 0.2 ms."""
    return Trial("", remedy, "", 1, 1, 5, 0.2, 0.1, 0.1, 0.09, 0.11, finding=finding, scope=scope)


def test_a_remedy_that_slows_down_another_part_is_applied_by_hand():
    command, scope = "workbench export MODEL --rewrite matrices", Scope(threads=1)
    first, second = (
        Finding(name, Gain.at_most(0.5), (name,), "multiply", "x @ matrix\nand more", command,
                remedy="matrices", rule="remedy", latency_ms=1.0, spent_ms=0.5)
        for name in ("first", "second")
    )  # fmt: skip
    trial = made_trial("matrices", first.id, scope)
    worse = replace(
        trial, finding=second.id, after_ms=0.3, gain_ms=-0.1, low_ms=-0.11, high_ms=-0.09
    )
    better, _ = apply_trials([first, second], [trial, worse], scope)
    assert better.by_hand and not list_commands(better)
    assert list_code(better) == ["x @ matrix", "and more"]
    assert describe_action(better).endswith("by hand: --rewrite matrices makes another part slower")
    assert list_commands(apply_trials([first, second], [trial], scope)[0]) == [command]


def test_a_part_gains_no_more_than_its_operators_and_those_beside_take():
    """Within the error of what stays; a whole program gains its share, whatever the moment."""
    scope = Scope(threads=1)
    finding = Finding(
        "slow", Gain.at_most(0.03), ("a",), "do", rule="remedy", latency_ms=1.0, spent_ms=0.03,
        most_ms=0.05,
    )  # fmt: skip
    trial = made_trial("masks", finding.id, scope)
    program = replace(trial, whole=True, before_ms=0.8, after_ms=0.7)
    cases = [(trial, [0.05, 0.045, 0.0575]), (program, [0.125, 0.1125, 0.1375])]
    for made, gain in cases:
        (tried,) = apply_trials([finding], [made], scope)
        assert [tried.gain.ms, tried.gain.low, tried.gain.high] == pytest.approx(gain)
        assert tried.gains_beside


def test_an_estimate_below_one_percent_comes_after_what_may_gain_more():
    rewrite = Rewrite("functions", "softmax", ("softmax",), 0.5, 130.0, 1, (("softmax",),))
    small, floor, large = (
        Finding(name, gain, (name,), "do", rule=rule, latency_ms=1.0, spent_ms=0.2, rewrite=rewrite)
        for name, rule, gain in [
            ("small", "remedy", Gain(0.003, 0.0, 0.05, "twin")),
            ("floor", "compute-bound", Gain.at_most(0.4)),
            ("large", "remedy", Gain(0.02, 0.0, 0.05, "twin")),
        ]
    )
    assert rank_findings([small, floor, large]) == (large, floor, small)


@pytest.mark.parametrize(
    "change", [{"threads": 2}, {"isa": "avx2"}, {"method": "decode"},
               {"shapes": ((1, 8),)}, {"position": 7}, {"cpu": "another"}, {"clock": "wall_ns"}],
)  # fmt: skip
def test_a_trial_holds_for_its_scope_alone(change):
    scope = Scope("native", 1, "", ((1, 4),), 0, "this", "cpu_ns")
    finding = Finding("slow", Gain.at_most(0.5), ("a",), "do", rule="remedy", latency_ms=1.0)
    trial = made_trial("mean", finding.id, scope)
    (tried,) = apply_trials([finding], [trial], scope)
    assert tried.gain.basis == "checked"
    assert apply_trials([finding], [trial], replace(scope, **change)) == [finding]


@pytest.mark.whole
def test_each_thread_count_and_phase_has_a_trial_of_its_own(tmp_path):
    """What is tried at one thread is not told of two; parts have the inputs of the phase."""
    torch.manual_seed(0)
    module = Net(lambda net, x: net.layers[0](fn.avg_pool2d(x, 3, 1, 1)), nn.Conv2d(16, 16, 1))
    image = torch.randn(1, 16, 48, 48)
    program = wb.export_model(module.eval(), image, root=tmp_path, progress=quiet)
    np.save(tmp_path / "zeros.npy", np.zeros(image.shape, np.float32))
    phases = (f"night={tmp_path / 'zeros.npy'}",)
    options = wb.MeasureOptions(threads=(1, 2), phases=phases, **BRIEF)
    run = wb.measure(program, options=options, root=tmp_path, progress=quiet, artifacts=False)
    one, two = (run[run.subject.name, count] for count in (1, 2))
    (trial,) = wb.check_findings(two, module, image, budget_s=2)
    assert trial.scope == two.scope and trial.scope.threads == 2 and not trial.problem
    assert trial.sqnr_db is None, "averages of zeros do not differ"
    assert (one.scope.clock, two.scope.clock) == ("cpu_ns", "wall_ns")
    again = wb.open_run(run.path)
    shown = [
        next(each.trial for each in again[m.name, m.threads].opportunities) for m in (one, two)
    ]
    assert shown == [None, trial]


@pytest.mark.cases
def test_a_part_returns_nothing_that_nobody_reads(tmp_path):
    """The places of the largest elements."""
    module = Net(lambda net, x: net.layers[0](x).max(1)[0].tanh(), nn.Linear(32, 32))
    check, _ = try_remedy(module, torch.randn(1, 64, 32), "pooling", tmp_path)
    assert not check.problem


@pytest.mark.cases
def test_an_option_is_tried_where_a_finding_has_some_of_its_parts(tmp_path):
    """`--rewrite matrices` changes both; a table that is read by rows, too, is still turned."""

    def run(net, ids):
        x = net.layers[0](ids)
        return x.cumsum(-1).flip(1).sin() @ net.layers[0].weight.t(), x.roll((1, 2), (1, 2)) @ net.w

    layers, buffers = [nn.Embedding(300, 64)], {"w": torch.randn(64, 8)}
    module, ids = Net(run, *layers, **buffers), torch.randint(0, 300, (1, 64))
    measured = measure(module, ids, tmp_path)
    trials = wb.check_findings(measured, module, ids)
    several = [r for r in measured.subject.export.rewrites if r.name == "matrices"]
    tried = {each.finding: each for each in trials}
    assert len(several) > 1 and tried["matrices"].whole, tried
    (constants,) = (each for each in trials if each.remedy == "constants")
    assert constants.answer == "gains", constants.problem


@pytest.mark.cases
def test_a_filter_of_two_calls_is_no_obstacle_to_a_remedy(tmp_path, in_parts):
    """With the remedy, both calls are in one delegate, where upstream refuses a shared filter."""
    torch.manual_seed(0)

    def twice(net, x):
        y = net.layers[0](x).sigmoid()
        return net.layers[0](y * (y**0.5 + 1))

    module, x = Net(twice, nn.Conv1d(32, 32, 3, padding=1)), torch.rand(1, 32, 256)
    check, advice = try_remedy(module, x, "powers", tmp_path)
    assert not check.problem and check.gain_ms > 0 and "not tried" not in advice
    options = ExportOptions(rewrite=("powers",))
    better = wb.export_model(module, x, options, root=tmp_path, progress=quiet).export
    assert better.sqnr_db > 100 and "a filter for each call" in better.options["needs"]


@pytest.mark.cases
def test_a_model_in_another_dtype_is_lowered_once(tmp_path, monkeypatch):
    """The other side is the program that was measured."""
    torch.manual_seed(0)
    made = []

    def count(model, options, *rest, **settings):
        made.append(options.dtype)
        return lower_model(model, options, *rest, **settings)

    module, x = Net(lambda net, x: net.layers[0](x).relu(), nn.Linear(64, 64)), torch.randn(4, 64)
    run = measure(module, x, tmp_path, dtype="bf16")
    monkeypatch.setattr("workbench.export.lower.lower_model", count)
    (check,) = (each for each in wb.check_findings(run) if each.remedy == "fp32")
    assert made == ["fp32"] and not check.problem
    assert check.gain_ms > 0 and check.sqnr_db > 30 and check.kernels == (3, 0)


@pytest.mark.cases
def test_a_loop_is_tried_as_a_whole(tmp_path, in_parts):
    """Its steps share one product; of three loops that are alike, two are tried."""
    torch.manual_seed(0)

    def step(net, x):
        for layer in net.layers:
            rows = [torch.relu(layer(x[n : n + 1])) for n in range(22)]
            x = torch.cat(rows)
        return x

    module = Net(step, *(nn.Linear(32, 32) for _ in range(3)))
    check, advice = try_remedy(module, torch.randn(22, 32), "loops", tmp_path)
    assert not check.problem and check.gain_ms > 0
    assert (check.tried, check.parts) == (2, 3)
    assert "2 of 3 parts" in advice


def quiet(text, fraction):
    """Report nothing."""


def test_a_run_of_another_model_is_not_checked_with_this_one(tmp_path):
    run = wb.open_run(wb.sample_run("toy_cnn"))
    assert wb.check_findings(run, nn.Linear(2, 2), torch.randn(1, 2)) == []


@pytest.mark.whole
def test_functions_of_many_operators_stay_in_floating_point(tmp_path):
    """The logarithm of a quantised softmax would be noise, and upstream cannot partition it."""
    torch.manual_seed(0)
    first, last = nn.Linear(32, 32), nn.Linear(32, 8)
    module = Net(lambda net, x: last(first(x).log_softmax(-1)), first, last).eval()
    options = ExportOptions(dtype="int8", rewrite=("functions",))
    program = wb.export_model(module, torch.randn(4, 32), options, root=tmp_path, progress=quiet)
    assert program.export.sqnr_db > 30
    assert all(row.delegated for row in program.export.partition)


class RootOfSquares(nn.Module):
    """Squares are delegated and square roots are not: in the program, both are `pow`."""

    def __init__(self):
        super().__init__()
        self.widen, self.narrow = nn.Linear(48, 112), nn.Linear(112, 48)

    def forward(self, x):
        for _ in range(3):
            y = self.widen(x)
            x = x + self.narrow(y / (y.pow(2).mean(-1, keepdim=True) + 1e-6).pow(0.5))
        return x


@pytest.mark.whole
def test_a_remedy_has_the_rows_of_all_operators_that_it_replaces(tmp_path):
    """Lowering numbers nodes anew, so that their names in the program are those of others."""
    m = measure(RootOfSquares(), torch.randn(3, 77, 48), tmp_path).subject
    for rewrite in m.export.rewrites:
        steps = [step for step in m.flow.steps if step.origin.traced in rewrite.nodes]
        assert len(steps) == len(rewrite.nodes) == 3
        assert {step.origin.operator.partition(".")[0] for step in steps} in ({"pow"}, {"mean"})
    roots = {step.id for step in m.flow.steps if step.type == "pow"}
    assert len(roots) == 3
    claimed = {node for each in m._causes if each.remedy for key in each.operators
               for node in m.nodes.get(key, ())}  # fmt: skip
    assert roots <= claimed
