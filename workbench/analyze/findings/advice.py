"""What to do about an operator that no delegate took."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Advice:
    """How to spell an operator so that XNNPACK takes it.

    ``passes`` counts the operators of the delegate that take its place; None where none can, or
    nobody knows: then only an upper bound of the gain is known.
    """

    action: str
    hint: str
    passes: int | None = None


_GELU = (
    "0.5 * x * (1 + torch.tanh(0.7978846 * (x + 0.044715 * x * x * x)))"
    "  # `workbench export --rewrite` does it in half precision"
)

#: By name of the kernel; each spelling computes the same.
ADVICE = {
    "gelu": Advice("spell GELU by tanh, which XNNPACK takes in every dtype", _GELU, 9),
    "elu": Advice(
        "spell ELU by relu and exp, which XNNPACK takes",
        "torch.relu(x) - torch.relu(1 - torch.exp(x))",
        5,
    ),
    "mean": Advice(
        "keep the dimensions and drop them afterwards", "x.mean((2, 3), keepdim=True).flatten(1)", 1
    ),
    "mm": Advice("multiply as a batch of one", "torch.bmm(a[None], b[None])[0]", 1),
    "select_copy": Advice(
        "slice and reshape instead of selecting", "x[:, :1].flatten(1)  # for x[:, 0]", 1
    ),
    "squeeze_copy": Advice(
        "reshape instead of squeezing or unbinding",
        "q, k, v = qkv.chunk(3, dim=-1)  # for qkv.reshape(..., 3, ...).unbind(...)",
        1,
    ),
    "expand_copy": Advice(
        "drop expansions to the shape that is there already; let arithmetic broadcast the others",
        "workbench export MODEL  # --rewrite, the default, drops the former",
        1,
    ),
    "hardsigmoid": Advice("spell it by clamp", "torch.clamp(x + 3, 0, 6) / 6", 3),
    "pow": Advice("multiply instead of raising to a power", "x * x", 1),
    "native_layer_norm": Advice(
        "normalise over channels that a convolution can absorb (batch norm), or normalise less "
        "often: XNNPACK has no layer norm",
        "nn.BatchNorm2d(channels)  # where the architecture leaves the choice",
    ),
    "upsample_nearest2d": Advice(
        "resize bilinearly, which XNNPACK takes, or repeat by concatenation",
        'F.interpolate(x, scale_factor=2, mode="bilinear")  # another function: retrain or check',
    ),
    "_to_dim_order_copy": Advice(
        "keep everything in one dtype: each cast breaks the graph",
        "workbench export MODEL  # --rewrite, the default, makes casts of constants at export",
    ),
    "_softmax": Advice(
        "take the softmax over the last dimension, the only one that XNNPACK knows",
        "x.transpose(dim, -1).softmax(-1).transpose(dim, -1)",
        3,
    ),
    "index": Advice(
        "slice or concatenate instead of indexing with a tensor", "x[:, start:stop]  # for x[ids]"
    ),
    "where": Advice(
        "multiply by a mask, or clamp, instead of choosing", "x * mask + y * (1 - mask)", 3
    ),
}

_REASONS = (
    ("dynamic", "make its shape static", "example inputs of the one size that is deployed"),
    ("dtype", "compute it in a dtype that XNNPACK takes", "x.float()"),
    ("type", "compute it in a dtype that XNNPACK takes", "x.float()"),
)


def advise(operator: str, reason: str) -> Advice:
    """What to do about an operator, given what the partitioner said of it."""
    if operator in ADVICE:
        return ADVICE[operator]
    for word, action, hint in _REASONS:
        if word in reason.lower():
            return Advice(action, hint)
    return Advice(
        "spell it in operators that XNNPACK takes, or take it out of the model",
        "workbench export MODEL  # says what the partitioner left behind, and where",
    )
