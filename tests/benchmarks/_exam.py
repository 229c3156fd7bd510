"""Known performance problems of ExecuTorch on CPUs, as users describe them: a small network each.

``before`` has the cause. The fix is a network (``after``), or options of the export (``fix``);
``rule`` and ``word`` name the finding that must be among the first three, or ``remedy`` does. Of
each kind in ``_KINDS``, the last network was written after the rule that finds it. ``thread`` is
where users asked, in pytorch/executorch unless another repository is named.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional as fn


@dataclass(frozen=True)
class Case:
    """A problem: what users see, a network with its cause, and what must be found."""

    name: str
    issue: str
    thread: str
    before: Any
    rule: str
    word: str = ""
    after: Any = None
    fix: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    threads: tuple[int, int] = (1, 1)
    #: The remedy that the finding must name.
    remedy: str = ""


class Net(nn.Module):
    """A function of inputs, with layers."""

    def __init__(self, function, *layers):
        super().__init__()
        self.function, self.layers = function, nn.ModuleList(layers)

    def forward(self, *x):
        return self.function(self.layers, *x)


def image(function, *layers, size=64, channels=32):
    """A network on an image between two convolutions."""
    stem, head = nn.Conv2d(3, channels, 3, padding=1), nn.Conv2d(channels, 8, 3, padding=1)
    return Net(lambda m, x: m[1](function(m[2:], m[0](x))), stem, head, *layers), (
        torch.randn(1, 3, size, size),
    )


def tokens(function, *layers, count=128, width=192):
    """A network on tokens between two linear layers."""
    return Net(
        lambda m, x: m[1](function(m[2:], m[0](x))),
        nn.Linear(64, width),
        nn.Linear(width, 64),
        *layers,
    ), (torch.randn(1, count, 64),)


def activation(function, make=image, **sizes):
    """Six layers, each with an activation."""
    make_layer = (lambda: nn.Conv2d(32, 32, 1)) if make is image else (lambda: nn.Linear(192, 192))

    def run(layers, x):
        for layer in layers:
            x = function(layer(x))
        return x

    return make(run, *(make_layer() for _ in range(6)), **sizes)


def time_mixing(layers, x):
    """A state that decays at each token, and begins with zeros."""
    total, count, results = torch.zeros(1, 96), torch.zeros(1, 96), []
    keys, values = x[..., :96].tanh(), x[..., 96:]
    for step in range(x.shape[1]):
        weight = torch.exp(keys[:, step])
        results.append((total + weight * values[:, step]) / (count + weight))
        total, count = total * 0.9 + weight * values[:, step], count * 0.9 + weight
    return torch.cat((torch.stack(results, 1), x[..., 96:]), -1)


def sums_of_steps(steps, join):
    """What each token makes of a state that begins with zeros, after functions of it."""
    state, results = torch.zeros(1, 192), []
    for step in steps:
        results.append(torch.tanh(state - step.sigmoid()) * step.tanh())
        state = join(state, step.sigmoid() * step.tanh()) * 0.5
    return torch.stack(results, 1)


def norm_by_hand(x):
    mean = x.mean(-1, keepdim=True)
    return (x - mean) / torch.sqrt(((x - mean) ** 2).mean(-1, keepdim=True) + 1e-5)


def softmax_by_hand(x):
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


def attend(x, bias=None, mask=None):
    scores = x @ x.transpose(-2, -1) * 0.1
    scores = scores if bias is None else scores + bias
    return (
        fn.scaled_dot_product_attention(x, x, x, mask)
        if mask is not None
        else scores.softmax(-1) @ x
    )


def chunked(m, x):
    for layer in m:
        left, right = x.chunk(2, 1)
        x = torch.cat((left, layer(right)), 1)
    return x


def gathered(m, x):
    ids = (torch.arange(128)[:, None] - torch.arange(128)[None]).abs()
    return attend(x, m[0].weight[ids].squeeze(-1))


def computed_weight(m, x):
    return x @ (m[0].weight.t() * 0.5 * m[1].weight.sigmoid()[0])


class Cell(nn.Module):
    """An LSTM whose layers are the model's own."""

    def __init__(self, size):
        super().__init__()
        self.size = size
        self.input, self.hidden = nn.Linear(size, 4 * size), nn.Linear(size, 4 * size)

    def forward(self, x):
        hidden = state = torch.zeros(1, self.size)
        rows = self.input(x)
        results = []
        for step in range(x.shape[1]):
            gates = rows[:, step : step + 1].reshape(1, -1) + self.hidden(hidden)
            i, f, g, o = (gates[:, k * self.size : (k + 1) * self.size] for k in range(4))
            state = f.sigmoid() * state + i.sigmoid() * g.tanh()
            hidden = o.sigmoid() * state.tanh()
            results.append(hidden)
        return torch.cat(results)[None]


CASES = (
    Case(
        "mm",
        "one matmul of two activations is not delegated",
        "#10297",
        lambda: tokens(lambda m, x: torch.mm(torch.mm(x[0], x[0].t()), x[0])[None], count=256),
        "undelegated",
        "mm",
        fix={"rewrite": ("products",)},
    ),
    Case(
        "computed weight",
        "Whisper: a matmul with a computed weight is slow",
        "#15914",
        lambda: tokens(computed_weight, nn.Linear(192, 192), nn.Linear(192, 1)),
        "fixed work",
        fix={"rewrite": ("constants",)},
    ),
    Case(
        "layer norm",
        "layer norms run outside the delegate",
        "#10297",
        lambda: activation(nn.LayerNorm(192), tokens),
        "undelegated",
        "native_layer_norm",
        fix={"rewrite": ("norms",)},
    ),
    Case(
        "batch norm",
        "a batch norm without a convolution before it",
        "#1340",
        lambda: image(
            lambda m, x: m[1](m[0](x.tanh())), nn.BatchNorm2d(32).eval(), nn.Conv2d(32, 32, 1)
        ),
        "remedy",
        fix={"rewrite": ("affine",)},
        remedy="affine",
    ),
    Case(
        "chunk",
        "splits break the graph into delegates",
        "#8763",
        lambda: image(chunked, *(nn.Conv2d(16, 16, 1) for _ in range(6))),
        "undelegated",
        "split",
        fix={"rewrite": ("slices",)},
    ),
    Case(
        "power",
        "square roots as powers are not delegated",
        "#10297",
        lambda: activation(lambda x: (x.relu() + 1) ** 0.5),
        "undelegated",
        "pow",
        fix={"rewrite": ("powers",)},
    ),
    Case(
        "hard swish",
        "hard swish is spelled out",
        "#4005",
        lambda: activation(lambda x: x * torch.clamp(x + 3, 0, 6) / 6),
        "remedy",
        "hard swish",
        fix={"rewrite": ("functions",)},
    ),
    Case(
        "gelu by tanh",
        "GELU is spelled out",
        "#6961",
        lambda: activation(
            lambda x: 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x**3))), tokens
        ),
        "remedy",
        "GELU",
        fix={"rewrite": ("functions",)},
    ),
    Case(
        "silu",
        "SiLU by an exponential",
        "#7880",
        lambda: activation(lambda x: x / (1 + torch.exp(-x))),
        "remedy",
        "SiLU",
        fix={"rewrite": ("functions",)},
    ),
    Case(
        "relu6",
        "ReLU6 by minimum and maximum",
        "#4005",
        lambda: activation(lambda x: torch.minimum(x.relu(), x.new_full((1,), 6.0))),
        "remedy",
        "clamp",
        fix={"rewrite": ("functions",)},
    ),
    Case(
        "norm by hand",
        "layer norm is spelled out",
        "#10297",
        lambda: activation(norm_by_hand, tokens),
        "remedy",
        "layer norm",
        fix={"rewrite": ("functions",)},
    ),
    Case(
        "softmax by hand",
        "softmax is spelled out",
        "#15914",
        lambda: tokens(lambda m, x: softmax_by_hand(x @ x.transpose(1, 2) * 0.1) @ x, count=256),
        "remedy",
        "softmax",
        fix={"rewrite": ("functions",)},
    ),
    Case(
        "upsampling",
        "a 1x1 convolution after an upsampling",
        "#8763",
        lambda: image(lambda m, x: m[0](fn.interpolate(x, scale_factor=2)), nn.Conv2d(32, 32, 1)),
        "remedy",
        "before",
        fix={"rewrite": ("order",)},
    ),
    Case(
        "pooling",
        "a 1x1 convolution before an average pooling",
        "#8763",
        lambda: image(lambda m, x: fn.avg_pool2d(m[0](x.relu()), 2), nn.Conv2d(32, 32, 1)),
        "remedy",
        "after",
        fix={"rewrite": ("order",)},
    ),
    Case(
        "one token",
        "a layer for all tokens, of which one is used",
        "RNE#403",
        lambda: tokens(lambda m, x: m[0](x.relu())[:, :1], nn.Linear(192, 192)),
        "remedy",
        "after",
        fix={"rewrite": ("order",)},
    ),
    Case(
        "one-hot",
        "an embedding as a product with one-hot vectors",
        "RNE#403",
        lambda: (
            Net(
                lambda m, i: m[1](m[0](fn.one_hot(i, 2000).float())),
                nn.Linear(2000, 128),
                nn.Linear(128, 64),
            ),
            (torch.randint(0, 2000, (1, 64)),),
        ),
        "remedy",
        "rows of a table",
        fix={"rewrite": ("lookups",)},
    ),
    Case(
        "gathered bias",
        "a table is gathered at every inference",
        "#10297",
        lambda: tokens(gathered, nn.Embedding(128, 1)),
        "fixed work",
        fix={"rewrite": ("constants",)},
    ),
    Case(
        "mask",
        "the guard of masked attention is not delegated",
        "#10297",
        lambda: tokens(lambda m, x: attend(x[None], mask=torch.zeros(128, 128))[0]),
        "remedy",
        "",
        lambda: tokens(lambda m, x: (x * 192**-0.5 @ x.transpose(1, 2)).softmax(-1) @ x),
    ),
    Case(
        "transposes",
        "transposes that cancel out",
        "#7880",
        lambda: activation(lambda x: x.permute(0, 2, 3, 1).exp().permute(0, 3, 1, 2)),
        "remedy",
        "exp",
        fix={"rewrite": ("functions",)},
    ),
    Case(
        "edges",
        "inputs are converted to channels last",
        "#7880",
        lambda: (nn.Conv2d(3, 16, 3, 2, 1), (torch.randn(1, 3, 512, 512),)),
        "layout",
        "inputs and outputs",
        fix={"channels_last": True},
    ),
    Case(
        "reflect",
        "reflect padding is slow",
        "#10297",
        lambda: image(lambda m, x: fn.pad(x, (2, 2, 2, 2), "reflect")),
        "undelegated",
        "index",
        lambda: image(lambda m, x: fn.pad(x, (2, 2, 2, 2))),
    ),
    Case(
        "groups",
        "grouped convolutions are slow",
        "#8763",
        lambda: image(lambda m, x: m[0](x), nn.Conv2d(32, 32, 3, padding=1, groups=8)),
        "sizes",
        "groups, which",
        lambda: image(lambda m, x: m[0](x[:, :4]), nn.Conv2d(4, 32, 3, padding=1)),
    ),
    Case(
        "large filters",
        "depthwise 7x7 filters are slow",
        "#8763",
        lambda: image(lambda m, x: m[0](x), nn.Conv2d(32, 32, 7, padding=3, groups=32)),
        "sizes",
        "filters of",
        lambda: image(lambda m, x: m[0](x), nn.Conv2d(32, 32, 5, padding=2, groups=32)),
    ),
    Case(
        "weights",
        "decoding waits for weights",
        "#10297",
        lambda: (
            nn.Sequential(
                *(layer for _ in range(12) for layer in (nn.Linear(1024, 1024), nn.ReLU()))
            ),
            (torch.randn(1, 1024),),
        ),
        "memory-bound",
        "",
        fix={"dtype": "int8dyn"},
    ),
    Case(
        "arithmetic",
        "convolutions at the peak in fp32",
        "#4005",
        lambda: image(
            lambda m, x: m[1](m[0](x)),
            nn.Conv2d(32, 128, 3, padding=1),
            nn.Conv2d(128, 32, 3, padding=1),
        ),
        "compute-bound",
        "",
        fix={"dtype": "int8"},
    ),
    Case(
        "threads",
        "a small model is slower with more threads",
        "#8763, #10549",
        lambda: activation(lambda x: x.relu(), size=12),
        "threads",
        threads=(2, 1),
    ),
    Case(
        "mean",
        "a mean over an image is not delegated",
        "#10297",
        lambda: image(
            lambda m, x: x * torch.sigmoid(m[0](x.mean((2, 3))))[:, :, None, None],
            nn.Linear(32, 32),
        ),
        "undelegated",
        "mean",
        fix={"rewrite": ("mean",)},
    ),
    Case(
        "bf16",
        "bfloat16 is not delegated",
        "#10188",
        lambda: image(
            lambda m, x: m[1](m[0](x).relu()), nn.Conv2d(32, 32, 3), nn.Conv2d(32, 32, 3)
        ),
        "dtype outside",
        "convolution",
        options={"dtype": "bf16"},
        fix={"dtype": "fp32"},
    ),
    Case(
        "portable",
        "resnet18 takes minutes",
        "#1231",
        lambda: image(lambda m, x: m[0](x).relu(), nn.Conv2d(16, 16, 3), size=32, channels=16),
        "portable",
        "nothing is delegated",
        options={"backend": "portable"},
        fix={"backend": "xnnpack"},
    ),
    Case(
        "top k",
        "topk is not delegated",
        "#8700",
        lambda: (
            Net(lambda m, x: m[0](x).topk(32)[0], nn.Linear(64, 512)),
            (torch.randn(1, 128, 64),),
        ),
        "undelegated",
        "topk",
        lambda: (
            Net(lambda m, x: m[0](x)[..., :32], nn.Linear(64, 512)),
            (torch.randn(1, 128, 64),),
        ),
    ),
    Case(
        "unfold",
        "unfold gathers patches by index",
        "#5381",
        lambda: image(
            lambda m, x: m[0](fn.unfold(x, 3, padding=1).reshape(1, -1, 64, 64)),
            nn.Conv2d(288, 32, 1),
        ),
        "undelegated",
        "index",
        lambda: image(lambda m, x: m[0](x), nn.Conv2d(32, 32, 3, padding=1)),
    ),
    Case(
        "LSTM",
        "a recurrent layer is slow",
        "#18487",
        lambda: tokens(lambda m, x: m[0](x)[0], nn.LSTM(192, 192, batch_first=True), count=16),
        "undelegated",
        "",
        lambda: tokens(lambda m, x: m[0](x), Cell(192), count=16),
    ),
)


def attention(function, heads=4, shared=1):
    """Attention of heads between linear layers, where keys have fewer heads."""
    width = 192 // heads

    def run(m, x):
        q, k, v = (layer(x).view(1, -1, n, width).transpose(1, 2) for layer, n in zip(
            m, (heads, shared, shared), strict=True))  # fmt: skip
        return function(q * width**-0.5, k, v).transpose(1, 2).reshape(1, -1, 192)

    sizes = (192, shared * width, shared * width)
    return tokens(run, *(nn.Linear(192, size) for size in sizes), count=64)


def plain(q, k, v):
    return (q @ k.transpose(-2, -1)).softmax(-1) @ v


def expanded(t, n):
    b, h, rows, width = t.shape
    return t[:, :, None].expand(b, h, n, rows, width).reshape(b, h * n, rows, width)


def by_slices(m, x):
    padded = fn.pad(x, (1, 1, 1, 1))
    parts = [padded[:, :, i : i + 64, j : j + 64] for i in range(3) for j in range(3)]
    return (m[0].weight.flatten(1) @ torch.stack(parts, 2).flatten(3).flatten(1, 2)).view(
        1, 32, 64, 64
    )


def by_windows(m, x):
    windows = fn.pad(x, (1, 1, 1, 1)).unfold(2, 3, 1).unfold(3, 3, 1)
    return torch.einsum("bchwij,ocij->bohw", windows, m[0].weight)


def by_patches(m, x):
    patches = m[0].weight[:, :, :2, :2].flatten(1) @ fn.unfold(x, 2, stride=2)
    return fn.interpolate(patches.view(1, 32, 32, 32), scale_factor=2, mode="bilinear")


def one_at_a_time(m, x):
    return torch.cat([torch.relu(m[0](x[:, n : n + 1])) for n in range(x.shape[1])], 1)


def growing(m, x):
    whole = x
    for _ in range(12):
        x = torch.tanh(m[0](x))
        whole = torch.cat((whole, x), 1)
    return whole


def many_layers(m, x):
    return torch.cat([torch.relu(layer(x)) for layer in m], -1)


def _linear(count=1, size=192):
    return [nn.Linear(192, size) for _ in range(count)]


def _filters():
    return [nn.Conv2d(32, 32, 3)]


def shifted(layers, x):
    """A part of the channels from the token before, another from the one after."""
    y = torch.zeros_like(x)
    y[:, 1:, :64], y[:, :-1, 64:128], y[..., 128:] = x[:, :-1, :64], x[:, 1:, 64:128], x[..., 128:]
    return y


def on_a_canvas(layers, x):
    canvas = x.new_full((1, 32, 72, 72), 0.5)
    canvas[:, :, 4:68, 4:68] = x
    return canvas


def in_turns(layers, x):
    y = torch.zeros(1, 128, 192)
    y[..., 0::2], y[..., 1::2] = -x[..., 96:], x[..., :96]
    return y


def _factors(*shape):
    return torch.linspace(0.5, 2, math.prod(shape)).view(shape)


def sines(rows, width):
    """The table of positions of a transformer."""
    rates = torch.exp(torch.arange(0, width, 2).float() * (-math.log(10000.0) / width))
    places = torch.arange(rows).float()[:, None] * rates
    return torch.cat((places.sin(), places.cos()), -1)[None]


def coordinates(size):
    """Where each pixel is, from -1 to 1."""
    axis = torch.linspace(-1, 1, size)
    return torch.stack(torch.meshgrid(axis, axis, indexing="ij"))[None]


def distances(count):
    """How far apart two tokens are, at most 15."""
    places = torch.arange(count)
    return (places[:, None] - places).abs().clamp(max=15)


def three_branches(m, x):
    """Blocks as they are trained: a wide filter, a narrow one, and the input."""
    for wide, narrow, norm in zip(m[::3], m[1::3], m[2::3], strict=True):
        x = (wide(x) + narrow(x) + norm(x)).relu()
    return x


def layers_of_branches(count, groups=1):
    layers = []
    for _ in range(count):
        layers += [
            nn.Sequential(nn.Conv2d(32, 32, k, 1, k // 2, groups=groups, bias=False),
                          nn.BatchNorm2d(32)) for k in (3, 1)
        ] + [nn.BatchNorm2d(32)]  # fmt: skip
    return layers


def adapted(m, x):
    """A layer with an adapter of low rank, as a model is tuned."""
    for base, down, up in zip(m[::3], m[1::3], m[2::3], strict=True):
        x = (base(x) + 2.0 * up(down(x))).relu()
    return x


def multi_scale(m, x):
    """Filters of several sizes of one series, which are summed."""
    x = x.transpose(1, 2)
    return torch.stack([layer(x) for layer in m]).sum(0).relu().transpose(1, 2)


class Experts(nn.Module):
    """All experts of a mixture, of which each token uses two; how they are weighted differs."""

    def __init__(self, mix, width=192, hidden=384, count=8):
        super().__init__()
        self.mix, self.gate = mix, nn.Linear(width, count)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))
            for _ in range(count)
        )

    def forward(self, x):
        weights, chosen = self.gate(x).softmax(-1).topk(2, -1)
        return self.mix([lambda e=e: e(x) for e in self.experts], weights, chosen)


def masked_experts(experts, weights, chosen):
    total = 0.0
    for number, expert in enumerate(experts):
        total = total + expert() * (weights * (chosen == number)).sum(-1, keepdim=True)
    return total


def scattered_experts(experts, weights, chosen):
    gates = torch.zeros(*weights.shape[:-1], len(experts)).scatter(-1, chosen, weights)
    return sum(gates[..., n : n + 1] * expert() for n, expert in enumerate(experts))


def gathered_experts(experts, weights, chosen):
    stacked = torch.stack([expert() for expert in experts], -2)
    ids = chosen[..., None].expand(*chosen.shape, stacked.shape[-1])
    return (stacked.gather(-2, ids) * weights[..., None]).sum(-2)


def mixture(mix):
    return tokens(lambda m, x: m[0](x), Experts(mix), count=1)


class Chosen(nn.Module):
    """Experts as two stacked matrices, of which each of 24 tokens multiplies those of its own."""

    def __init__(self, multiply, width=192, hidden=256, count=8):
        super().__init__()
        self.multiply, self.gate = multiply, nn.Linear(width, count)
        self.up = nn.Parameter(torch.randn(count, hidden, width) / width**0.5)
        self.down = nn.Parameter(torch.randn(count, width, hidden) / hidden**0.5)

    def forward(self, x):
        weights, chosen = self.gate(x[0]).softmax(-1).topk(2, -1)
        y = self.multiply(fn.silu(self.multiply(x[0, :, None].expand(-1, 2, -1), self.up, chosen)),
                          self.down, chosen)  # fmt: skip
        return (y * weights[..., None]).sum(1)[None]


def batched_matrices(x, matrices, chosen):
    y = torch.bmm(matrices[chosen.flatten()], x.flatten(0, 1).unsqueeze(-1))
    return y.squeeze(-1).unflatten(0, chosen.shape)


def chosen(multiply):
    return tokens(lambda m, x: m[0](x), Chosen(multiply), count=24)


def nearest(x, code):
    """The number of the row that is most like each of some others."""
    return (x @ code.T).argmax(-1)


def by_tables(function, *layers, count=8, width=16):
    """A network on rows of several tables, a column of numbers for each."""
    tables = [nn.Embedding(1000 + 7 * n, width) for n in range(count)]
    ids = torch.randint(0, 1000, (8, count))
    return Net(lambda m, i: m[0](function(m[1:], i)), nn.Linear(count * width, 64), *tables,
               *layers), (ids,)  # fmt: skip


#: By name and thread, the remedy of a kind, and networks that have its cause.
_KINDS = (
    ("padded pooling", "#12134", "pooling", (
        lambda: image(lambda m, x: fn.avg_pool2d(x, 3, 1, 1)),
        lambda: tokens(lambda m, x: fn.avg_pool1d(x, 5, 1, 2)),
        lambda: image(lambda m, x: fn.avg_pool2d(x, 3, 2, ceil_mode=True)),
    )),
    ("maxima", "#8700", "pooling", (
        lambda: image(lambda m, x: x * x.amax((2, 3), keepdim=True)),
        lambda: tokens(lambda m, x: x - x.max(1, keepdim=True)[0]),
        lambda: tokens(lambda m, x: x / (x.abs().topk(1, dim=1)[0] + 1)),
    )),
    ("repeats", "#4475", "broadcasts", (
        lambda: tokens(lambda m, x: x * m[0](x).exp().repeat(1, 1, 192), *_linear(1, 1)),
        lambda: image(lambda m, x: x + x.mean((2, 3), keepdim=True).expand(x.shape).contiguous()),
        lambda: tokens(lambda m, x: x - m[0](x).tile(1, 1, 192), *_linear(1, 1)),
    )),
    ("grouped queries", "#4461", "groups", (
        lambda: attention(lambda q, k, v: plain(q, *(t.repeat_interleave(4, 1) for t in (k, v)))),
        lambda: attention(lambda q, k, v: plain(q, expanded(k, 2), expanded(v, 2)), 4, 2),
        lambda: attention(lambda q, k, v: torch.einsum(
            "bhij,bhjd->bhid", torch.einsum("bhid,bhjd->bhij", q, k.repeat_interleave(2, 1))
            .softmax(-1), v.repeat_interleave(2, 1)), 4, 2),
    )),
    ("norms", "#10297", "norms", (
        lambda: activation(nn.GroupNorm(4, 32)),
        lambda: activation(nn.RMSNorm(192), tokens),
        lambda: activation(lambda x: x / (x.std(-1, keepdim=True) + 1e-5), tokens),
    )),
    ("functions", "#4475", "functions", (
        lambda: activation(lambda x: 1.0 / (1.5 + x.abs())),
        lambda: activation(fn.elu),
        lambda: activation(lambda x: torch.where(x > 0, x, 0.3 * x)),
    )),
    ("softmax of channels", "#15914", "functions", (
        lambda: image(lambda m, x: x.softmax(1)),
        lambda: tokens(lambda m, x: x.log_softmax(-1)),
        lambda: tokens(lambda m, x: x.softmax(1)),
    )),
    ("padding and shifts", "#10297", "matrices", (
        lambda: image(lambda m, x: fn.pad(x, (2, 2, 2, 2), "reflect")),
        lambda: image(lambda m, x: x.roll((2, 2), (2, 3))),
        lambda: tokens(lambda m, x: x.flip(1)),
    )),
    ("resizing", "#1330", "matrices", (
        lambda: image(lambda m, x: fn.interpolate(x, scale_factor=2)),
        lambda: image(lambda m, x: fn.interpolate(x, scale_factor=2, mode="bicubic")),
        lambda: image(lambda m, x: fn.adaptive_avg_pool2d(x, 24)),
    )),
    ("sums along axes", "#12103", "matrices", (
        lambda: tokens(lambda m, x: x.cumsum(1)),
        lambda: tokens(lambda m, x: x - x.mean(1, keepdim=True)),
        lambda: image(lambda m, x: x / (1 + x.abs().sum(1, keepdim=True))),
    )),
    ("spectra", "#21950", "matrices", (
        lambda: tokens(lambda m, x: torch.fft.rfft(x, n=192).abs()[..., :96].repeat(1, 1, 2)),
        lambda: tokens(lambda m, x: fn.pad(torch.fft.rfft(x).abs().square(), (0, 95))),
        lambda: tokens(lambda m, x: torch.view_as_real(torch.fft.rfft(x))[..., :96, :].flatten(2)),
    )),
    ("masks", "#10297", "masks", (
        lambda: attention(lambda q, k, v: fn.scaled_dot_product_attention(
            q, k, v, is_causal=True), 4, 4),
        lambda: attention(lambda q, k, v: (q @ k.transpose(-2, -1)).masked_fill(
            (k[..., 0] > 2)[:, :, None], -math.inf).softmax(-1) @ v, 4, 4),
        lambda: attention(lambda q, k, v: torch.where(
            (k[..., 0] < 2)[:, :, None], q @ k.transpose(-2, -1), -1e9).softmax(-1) @ v, 4, 4),
    )),
    ("expanded products", "#6961", "products", (
        lambda: attention(plain, 4, 4),
        lambda: tokens(lambda m, x: torch.matmul(x, x.transpose(1, 2)).relu() @ x),
        lambda: attention(plain, 4, 1),
    )),
    ("strides", "#8763", "slices", (
        lambda: tokens(lambda m, x: torch.cat((x[:, ::2], x[:, 1::2]), 1)),
        lambda: tokens(lambda m, x: torch.cat((x[..., 1::2], x[..., ::2]), -1)),
        lambda: tokens(lambda m, x: x.unfold(1, 2, 2).sum(-1)),
    )),
    ("double constants", "#21859", "doubles", (
        lambda: tokens(lambda m, x: (x * torch.linspace(0, 1, 192).double()).float()),
        lambda: tokens(lambda m, x: x.double().softmax(-1).float()),
        lambda: image(lambda m, x: (x + torch.tensor([0.5], dtype=torch.float64)).float()),
    )),
    ("convolutions by hand", "#5381", "convolutions", (
        lambda: image(by_slices, *_filters()),
        lambda: image(by_windows, *_filters()),
        lambda: image(by_patches, *_filters()),
    )),
    ("loops", "#12103", "loops", (
        lambda: tokens(one_at_a_time, *_linear(), count=16),
        lambda: tokens(growing, *_linear(), count=96),
        lambda: tokens(many_layers, *_linear(32, 6)),
    )),
    ("loops from zeros", "", "loops", (
        lambda: tokens(time_mixing, count=32),
        lambda: tokens(lambda m, x: sums_of_steps(
            x.unbind(1), lambda state, new: state + new), count=32),
        lambda: tokens(lambda m, x: sums_of_steps(
            [x[:, step] for step in range(32)], torch.maximum), count=32),
    )),
    ("comparisons", "", "functions", (
        lambda: image(lambda m, x: x * (fn.max_pool2d(x, 3, 1, 1) == x).float()),
        lambda: image(lambda m, x: torch.where(x.abs() < x[:, :1].sigmoid(), x, x.tanh())),
        lambda: tokens(lambda m, x: x.masked_fill((x > 0.5) & (x.flip(1) < 0.5), 0)),
    )),
    ("numbers beside images", "", "layouts", (
        lambda: image(lambda m, x: x.sigmoid() * 0.5 + x.tanh()),
        lambda: image(lambda m, x: (x.tanh() + 1) / 2 - x.sigmoid()),
        lambda: image(lambda m, x: x.tanh() + m[0](x.sigmoid()).tanh() * _factors(32, 1, 1),
                      nn.Conv2d(32, 32, 1)),
    )),
    ("assignments", "#10297", "assignments", (
        lambda: tokens(shifted),
        lambda: image(on_a_canvas),
        lambda: tokens(in_turns),
    )),
    ("factors", "#1340", "affine", (
        lambda: image(lambda m, x: m[0](x.relu()) * _factors(32, 1, 1) + 1, nn.Conv2d(32, 32, 1)),
        lambda: tokens(
            lambda m, x: (_factors(192) * m[0](x.relu())).relu(), nn.Linear(192, 192)),
        lambda: image(lambda m, x: (m[0](x.relu()) - _factors(32, 1, 1)) / 3, nn.Conv2d(32, 32, 3)),
    )),
    ("branches", "ml-cvnets#73", "branches", (
        lambda: image(three_branches, *layers_of_branches(4)),
        lambda: tokens(adapted, *(
            nn.Linear(a, b) for a, b in ((192, 192), (192, 8), (8, 192)) * 3)),
        lambda: tokens(multi_scale, *(
            nn.Conv1d(192, 192, k, padding=k // 2) for k in (1, 3, 5, 7))),
    )),
    ("experts", "transformers PR#46929", "experts", (
        lambda: mixture(masked_experts),
        lambda: mixture(scattered_experts),
        lambda: mixture(gathered_experts),
    )),
    ("chosen matrices", "", "experts", (
        lambda: chosen(batched_matrices),
        lambda: chosen(lambda x, w, i: torch.einsum("tki,tkoi->tko", x, w[i])),
        lambda: chosen(lambda x, w, i: (w[i] @ x[..., None])[..., 0]),
    )),
    ("chosen rows", "", "lookups", (
        lambda: tokens(lambda m, x: m[0].weight[nearest(x, m[0].weight)] + x, nn.Linear(192, 64)),
        lambda: tokens(lambda m, x: x + x.gather(
            1, m[0](x).topk(128, 1)[1].expand(-1, -1, 192)), nn.Linear(192, 1)),
        lambda: tokens(lambda m, x: x + torch.take_along_dim(
            x.flip(1), m[0](x).topk(128, 1)[1], 1), nn.Linear(192, 1)),
    )),
    ("several tables", "", "lookups", (
        lambda: by_tables(lambda m, i: torch.cat([t(i[:, n]) for n, t in enumerate(m)], 1)),
        lambda: by_tables(lambda m, i: torch.stack(
            [t(c) for t, c in zip(m, i.unbind(1), strict=True)], 1).flatten(1)),
        lambda: by_tables(lambda m, i: torch.cat(
            [t(i[:, n : n + 1]) for n, t in enumerate(m)], 1).view(8, -1)),
    )),
    ("tables", "#10297", "constants", (
        lambda: tokens(lambda m, x: x + sines(128, 192)),
        lambda: image(lambda m, x: torch.cat((x[:, :30], coordinates(64)), 1)),
        lambda: tokens(lambda m, x: x + m[0](distances(128)).mean(1), nn.Embedding(16, 192)),
    )),
)  # fmt: skip
CASES += tuple(
    Case(
        f"{name} {number}", name, thread, network, "remedy", fix={"rewrite": (remedy,)},
        remedy=remedy,
    )
    for name, thread, remedy, networks in _KINDS
    for number, network in enumerate(networks, 1)
)  # fmt: skip

#: What users ask that no network shows: the question, its threads, the command, and the answer.
ANSWERS = (
    ("slower than PyTorch, torch.compile or ONNX Runtime", "#10297, #7880, #4005, #6961, RNE#403",
     "workbench profile MODEL --against eager --against onnx",
     "both runtimes interleaved, on the same core"),
    ("slow on a phone with many cores", "#8763, #10549, PR#5811, PR#14090",
     "workbench run MODEL.pte --threads 1,2,4,8", "where more threads stop helping"),
    ("resnet18 takes minutes", "#1231", "workbench export MODEL",
     "operators that were not delegated, with reason and line"),
    ("operators add up to less than the delegate's call", "#4504", "workbench analyze RUN_DIR",
     "a ledger in which every nanosecond has one row"),
    ("which kernel ran under this layer?", "#9034", "workbench profile MODEL",
     "the microkernel of each operator, from samples of the program counter"),
    ("the ETDump is empty", "PR#16214", "workbench report FILE.etdump",
     "the build option that the runner lacks"),
    ("how is a program analysed at all?", "#2293", "workbench profile MODEL.pte",
     "a report with findings"),
    ("how much memory, and whose?", "#8911, #14474", "workbench profile MODEL",
     "a ledger of the resident set; weights that are held twice"),
    ("the first call takes seconds", "RNE#1393, PR#2408", "workbench profile MODEL",
     "cold starts by stage; set-up that packs weights"),
    ("it crashes with SME2", "XNNPACK#9898, #16241, #17482", "workbench run MODEL.pte",
     "the level that works, if one does"),
    ("SME2 is slower, or never runs", "XNNPACK#10719", "workbench run MODEL.pte --toggle sme2",
     "off and on interleaved, with the kernels that ran"),
    ("a bundled program (.bp)", "", "workbench run MODEL.bp",
     "run on its own inputs; its outputs are compared with those that it expects"),
    ("the trace of Core ML, Vulkan or another delegate", "", "workbench report FILE.etdump",
     "a ledger of its operators, with what the delegate logged as `metadata`"),
    ("a softmax has wrong values after a convolution", "", "workbench export MODEL",
     "rewritten; other wrong outputs: the first operator that is wrong"),
)  # fmt: skip
