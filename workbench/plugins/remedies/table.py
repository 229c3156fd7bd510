"""The table of remedies: what each does, and how a person would write it.

`--rewrite NAME` applies a remedy, findings name it, `findings --check` tries it, and the
documentation lists it. How each is found in a graph is in `rewrite`.
"""

from workbench.api import Remedies, Remedy

_TABLE = (
    Remedy(
        "hardsigmoid",
        "hard sigmoid as a clamp, without casts of its constants at every inference",
        "torch.clamp(x + 3, 0, 6) / 6",
        common=True,
    ),
    Remedy(
        "gelu",
        "GELU in half precision by its tanh approximation (error up to 5e-4)",
        "0.5 * x * (1 + torch.tanh(0.7978846 * (x + 0.044715 * x**3)))",
        "its error is up to 5e-4, the resolution of half precision at 1",
        common=True,
    ),
    Remedy(
        "silu",
        "SiLU in half precision as a product with a sigmoid, without casts",
        "x * torch.sigmoid(x)",
        common=True,
    ),
    Remedy(
        "attention",
        "attention without a mask as two products and a softmax, without its guard "
        "against fully masked rows",
        "(q * q.shape[-1] ** -0.5 @ k.transpose(-2, -1)).softmax(-1) @ v",
        common=True,
    ),
    Remedy(
        "softmax",
        "softmax over the last of an image's four dimensions in two dimensions",
        "x.flatten(0, 2).softmax(-1).view(x.shape)",
        common=True,
        until="1.6",
    ),
    Remedy(
        "layer_norm",
        "layer norm and group norm in half precision and bfloat16 in single precision",
        "norm.float()(x.float()).to(x.dtype)",
        common=True,
        until="1.6",
    ),
    Remedy(
        "transposes",
        "no two transposes that undo each other",
        "x  # for x.transpose(1, 2).transpose(1, 2)",
        common=True,
    ),
    Remedy(
        "casts",
        "casts of constants computed by the export",
        'self.register_buffer("steps", steps.float())  # in __init__, not in forward()',
        common=True,
    ),
    Remedy(
        "expansions",
        "no expansion to a tensor's own shape",
        "x  # for x.expand(x.shape)",
        common=True,
    ),
    Remedy(
        "slices",
        "slices and reshapes instead of splits, selections and unbinding",
        "x[:, :1].flatten(1)  # for x[:, 0]; a, b = x[:, :n], x[:, n:] for x.split(n, 1)",
    ),
    Remedy(
        "mean",
        "means that keep their dimensions, reshaped afterwards",
        "x.mean((2, 3), keepdim=True).flatten(1)",
    ),
    Remedy(
        "softmax_axis",
        "softmax over another dimension as one over the last, which XNNPACK has",
        "x.transpose(1, -1).softmax(-1).transpose(1, -1)  # for x.softmax(1)",
    ),
    Remedy(
        "products",
        "products of two activations as one batch of matrices, without expanded copies",
        "torch.bmm(a[None], b[None])[0]  # for torch.mm(a, b)\n"
        "torch.bmm(a.flatten(0, 1), b.flatten(0, 1))  # for a @ b of four dimensions",
    ),
    Remedy(
        "powers",
        "products and square roots instead of powers",
        "x * x  # for x ** 2; torch.sqrt(x) for x ** 0.5",
    ),
    Remedy(
        "norms",
        "norms and variances as matrix products and elementwise operators",
        "part = torch.full((x.shape[-1], 1), 1 / x.shape[-1])\ny = x - x @ part\n"
        "y * torch.rsqrt(y * y @ part + 1e-5) * norm.weight + norm.bias  # norm: nn.LayerNorm",
    ),
    Remedy(
        "constants",
        "what depends on no input is computed by the export",
        'self.register_buffer("table", compute_table().contiguous())  # once, in __init__',
    ),
    Remedy(
        "functions",
        "a function in operators that XNNPACK has, or in one instead of several",
        "torch.ones_like(x) / x  # for torch.reciprocal(x); F.hardswish(x) for its definition",
    ),
    Remedy(
        "experts",
        "of a mixture of experts those alone that are chosen, for a few tokens; for many, the "
        "products with all, instead of a copy of the weights for each token",
        "self.up = torch.stack([e.up.weight.t() for e in self.experts])  # in __init__\n"
        "torch.bmm(x, self.up[chosen])  # chosen: of topk(); x: a row for each of them",
    ),
    Remedy(
        "branches",
        "parallel branches of one input, and linear layers in a row, as one layer",
        "layer.weight.data += F.pad(branch.weight, (1, 1, 1, 1))  # for layer(x) + branch(x)\n"
        "nn.Linear(k, n).weight.data = second.weight @ first.weight  # for second(first(x))",
    ),
    Remedy(
        "affine",
        "factors, offsets and linear maps around a layer as a part of its weights",
        "layer.weight.data *= factor[:, None]  # in __init__, for layer(x) * factor + offset\n"
        "layer.bias.data = layer.bias.data * factor + offset\n"
        "layer.weight.data = layer.weight.data[table]  # for layer(x)[..., table]",
    ),
    Remedy(
        "order",
        "convolutions and linear layers where there are fewer positions: before resizing",
        "F.interpolate(conv1x1(x), scale_factor=2)  # for conv1x1(F.interpolate(x, ...))",
    ),
    Remedy(
        "lookups",
        "rows of a table instead of products with one-hot vectors, and one table for several",
        "F.embedding(ids, weight)  # for F.one_hot(ids).float() @ weight\n"
        "table(ids + starts)  # for torch.stack([t(ids[:, n]) for n, t in enumerate(tables)], 1)",
    ),
    Remedy(
        "assignments",
        "parts put together instead of assigned into a tensor",
        "torch.cat((x[:, 1:], last), 1)  # for y[:, :-1] = x[:, 1:]; y[:, -1:] = last",
    ),
    Remedy(
        "gelu_tanh",
        "GELU by its tanh approximation (error up to 5e-4)",
        'F.gelu(x, approximate="tanh")',
        "its error is up to 5e-4",
    ),
    Remedy(
        "pooling",
        "pooling that XNNPACK refuses as a convolution with constant weights, or after padding",
        "F.conv2d(x, torch.full((channels, 1, k, k), 1 / k**2), stride=s, padding=p, "
        "groups=channels)\nF.max_pool2d(F.pad(x, (p, p, p, p), value=-math.inf), k, s)",
    ),
    Remedy(
        "convolutions",
        "a convolution that is written by hand as one operator",
        "F.conv2d(x, weight, bias, padding=1)  # for unfold and a product, or slices and sums",
    ),
    Remedy(
        "matrices",
        "operators that are linear along their axes as products with matrices, or as copied rows",
        "matrix = torch.eye(x.shape[-1]).cumsum(-1)  # once, in __init__; here of x.cumsum(-1)\n"
        "x @ matrix",
    ),
    Remedy(
        "broadcasts",
        "no repeated copies of a tensor where arithmetic broadcasts it",
        "x * scale[..., None]  # for x * scale[..., None].repeat(1, 1, n)",
    ),
    Remedy(
        "groups",
        "attention of grouped queries in one product for each key head, without repeated keys",
        "batch, heads, rows, width = q.shape\n"
        "q.reshape(batch, k.shape[1], -1, width) @ k.transpose(-2, -1)  # no k.repeat_interleave",
    ),
    Remedy(
        "masks",
        "attention with a mask as two products and a softmax, without its guard against fully "
        "masked rows",
        "(q * q.shape[-1] ** -0.5 @ k.transpose(-2, -1) + mask).softmax(-1) @ v  # mask: 0 or -1e9",
        "rows that are masked as a whole get a mean instead of zeros",
    ),
    Remedy(
        "layouts",
        "numbers and constants that meet images in four dimensions: around others, layouts are "
        "converted",
        'self.register_buffer("half", torch.full((1, 1, 1, 1), 0.5))  # x * self.half\n'
        "x * self.scale[None]  # in __init__: for a scale of (channels, 1, 1)",
    ),
    Remedy(
        "loops",
        "one operator for all steps of a loop whose operators do not wait for each other",
        "layer(x)  # for torch.cat([layer(x[i : i + 1]) for i in range(n)])",
    ),
    Remedy(
        "duplicates",
        "what is computed twice computed once",
        "y = layer(x)  # once, for all that read it",
    ),
    Remedy(
        "doubles",
        "constants in double precision as single precision",
        'self.register_buffer("table", table.float())',
        "it computes in single precision what it computed in double",
    ),
)
REMEDIES = {remedy.name: remedy for remedy in _TABLE}

#: The nearest function for a kernel that no remedy replaces: another one, or upstream's own way.
NEAREST: dict[str, tuple[str, str]] = {
    "upsample_nearest2d": (
        "resize bilinearly (another function: retrain or check)",
        'F.interpolate(x, scale_factor=2, mode="bilinear")',
    ),
    "custom_sdpa": (
        "attend to fewer positions: the time grows with those in the KV cache, and the operator is "
        "upstream's own, without XNNPACK",
        "workbench run MODEL.pte --phase near=1@16 --phase far=1@240",
    ),
    "topk": (
        "return the scores, and let the caller look for the largest ones",
        "return scores  # for scores.topk(k)",
    ),
    "sort": (
        "use topk, which has a portable kernel and sorts",
        "values, places = x.topk(x.shape[-1], largest=False)  # for x.sort()",
    ),
    "median": ("use topk, which has a portable kernel", "x.topk(n // 2 + 1)[0][..., -1]"),
    "argmax": (
        "return the scores, and let the caller look for the largest one",
        "return logits  # for logits.argmax(-1)",
    ),
    "grid_sampler_2d": (
        "sample a grid that depends on no input, which `--rewrite matrices` makes products of, or "
        "resize (another function: retrain or check)",
        'F.interpolate(x, size=size, mode="bilinear")',
    ),
    "slice_scatter": (
        "put parts together instead of assigning into a tensor",
        "torch.cat((x[:, 1:], last), 1)  # for y[:, :-1] = x[:, 1:]; y[:, -1:] = last",
    ),
    "view_as_complex": (
        "compute with real and imaginary parts",
        "torch.stack((a * c - b * s, a * s + b * c), -1)  # for (a + ib) * (c + is)",
    ),
    "_fft_r2c": (
        "multiply by matrices of cosines and sines (`--rewrite matrices`, where a real function "
        "reads the result), for rows of up to some hundred elements",
        "dft = torch.fft.rfft(torch.eye(x.shape[-1]))  # once, in __init__\n"
        "x @ dft.real, x @ dft.imag",
    ),
    "unfold": (
        "read windows by a convolution or a pooling, which copy nothing",
        "F.conv1d(x, filters, stride=hop)  # for x.unfold(-1, n, hop) @ filters",
    ),
    "cumprod": (
        "add logarithms, if all elements are positive",
        "x.log().cumsum(-1).exp()  # --rewrite matrices makes a product of cumsum",
    ),
    "logcumsumexp": (
        "add exponentials, if none overflows",
        "x.exp().cumsum(-1).log()  # --rewrite matrices makes a product of cumsum",
    ),
    "erf": (
        "use an activation that XNNPACK has (another function: retrain or check)",
        "F.gelu(x)  # it contains erf",
    ),
    "round": ("round halves up (another function there)", "torch.floor(x + 0.5)"),
    "isnan": ("leave the guard out, if inputs are finite", "x  # for torch.nan_to_num(x)"),
    "where": (
        "compute with a mask of ones and zeros",
        "x * keep + other * (1 - keep)  # for torch.where(keep > 0, x, other)",
    ),
    "prod": ("add logarithms, if all elements are positive", "x.log().sum(-1).exp()"),
    "max_pool3d_with_indices": (
        "pool the images, then their depth",
        "x = F.max_pool2d(x.flatten(1, 2), k).view(n, c, d, -1)\nF.max_pool2d(x, (k, 1))",
    ),
    "adaptive_max_pool2d": (
        "take the largest elements of windows that divide the image",
        "F.max_pool2d(x, (h // rows, w // columns))",
    ),
    "_cdist_forward": (
        "compute squared distances by a product",
        "((x * x).sum(-1)[:, None] + (c * c).sum(-1) - 2 * x @ c.t()).clamp(min=0).sqrt()",
    ),
    "bucketize": ("count the borders below", "(x[..., None] > borders).sum(-1)"),
    "__rshift__": (
        "divide and round down",
        'torch.div(x, 4, rounding_mode="floor")  # for x >> 2',
    ),
    "_trilinear": ("write it as an einsum", 'torch.einsum("bi,oij,bj->bo", a, weight, b)'),
    "convolution": (
        "keep the weights constant, and scale what goes in; of three dimensions, add "
        "convolutions of two",
        "F.conv2d(x * scale[:, :, None, None], weight)  # for F.conv2d(x, weight * scale)",
    ),
    "embedding": (
        "quantise the table if it does not fit in the cache: the operator only copies rows",
        "quantization.embedding_quantize='8,0'  # a setting of upstream's exporter",
    ),
}

#: Kernels that need what others do.
_ALIKE = {
    "argsort": "sort", "argmin": "argmax",
    "select_scatter": "slice_scatter", "copy": "slice_scatter",
    "complex": "view_as_complex", "polar": "view_as_complex", "view_as_real": "view_as_complex",
    "_fft_c2c": "_fft_r2c", "_fft_c2r": "_fft_r2c",
}  # fmt: skip
NEAREST |= {kernel: NEAREST[other] for kernel, other in _ALIKE.items()}
ADDED = Remedies(REMEDIES, "workbench.plugins.remedies.rewrite:REWRITER", NEAREST)
