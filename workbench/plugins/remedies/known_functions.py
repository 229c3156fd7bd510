"""Functions that a part of a graph may be, as lines of PyTorch: what is run is what is advised."""

import math
import re
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from workbench.plugins.remedies.equivalence import Build


class Function(NamedTuple):
    """A function of a tensor ``x``: in words, of how many operators, and the lines of its code."""

    text: str
    cost: int
    code: str

    @property
    def build(self) -> Build:
        """The function itself."""
        return compile_lines(self.code)

    @property
    def advice(self) -> str:
        """The code for a person: its numbers have six digits."""
        return re.sub(r"\d+\.\d{6,}(e-?\d+)?", lambda number: f"{float(number[0]):.6g}", self.code)


@cache
def compile_lines(code: str) -> Build:
    """The function of ``x`` whose result is the last of some lines."""
    *lines, last = code.splitlines()
    body = "".join(f"    {line}\n" for line in (*lines, f"return {last}"))
    scope: dict[str, Any] = {"torch": torch, "F": functional, "inf": math.inf, "nan": math.nan}
    exec(f"def build(x):\n{body}", scope)  # noqa: S102 - lines of this file
    return scope["build"]  # type: ignore[no-any-return]


def softplus(x: str) -> str:
    """``log(1 + exp(x))`` without overflow."""
    return f"torch.relu({x}) + torch.log(torch.exp(-torch.abs({x})) + 1.0)"


HARD_SIGMOID = "torch.clamp(x + 3.0, 0.0, 6.0) * (1 / 6)"
#: The cheapest in XNNPACK first, before and after those that are fitted.
_FIRST = (
    Function("hard swish", 1, "F.hardswish(x)"),
    Function("GELU", 1, "F.gelu(x)"),
    Function("a sigmoid", 1, "torch.sigmoid(x)"),
    Function("tanh", 1, "torch.tanh(x)"),
    Function("ReLU", 1, "torch.relu(x)"),
    Function("an absolute value", 1, "torch.abs(x)"),
    Function("a negation", 1, "-x"),
    Function("exp", 1, "torch.exp(x)"),
    Function("log", 1, "torch.log(x)"),
    Function("a square root", 1, "torch.sqrt(x)"),
    Function("a reciprocal square root", 1, "torch.rsqrt(x)"),
    Function("GELU by tanh", 1, 'F.gelu(x, approximate="tanh")'),
    Function("a square", 1, "x * x"),
    Function("a quotient of one", 1, "torch.ones(1, dtype=x.dtype) / x"),
    Function("a quotient of one and a square", 2, "torch.ones(1, dtype=x.dtype) / (x * x)"),
    Function("SiLU", 2, "x * torch.sigmoid(x)"),
    Function("a product of three", 2, "x * x * x"),
    Function("a product of four", 2, "y = x * x\ny * y"),
    Function("a product of five", 3, "y = x * x\ny * y * x"),
    Function("a product of six", 3, "y = x * x * x\ny * y"),
    Function("a clamp of large numbers", 2, "torch.clamp(x * 1e37, -1.0, 1.0)"),
    Function("(exp x - exp -x) / 2", 5, "(torch.exp(x) - torch.exp(-x)) * 0.5"),
    Function("(exp x + exp -x) / 2", 5, "(torch.exp(x) + torch.exp(-x)) * 0.5"),
)
_LAST = (
    Function("a hard sigmoid", 3, HARD_SIGMOID),
    Function("log(1 + exp x)", 7, softplus("x")),
    Function("x tanh(log(1 + exp x))", 9, f"x * torch.tanh({softplus('x')})"),
    Function("minus log(1 + exp -x)", 9, f"y = -x\n-({softplus('y')})"),
)


def list_functions(x: torch.Tensor, y: torch.Tensor) -> Iterator[Function]:
    """Functions of a number that may make some numbers of others: as they are, or fitted."""
    yield from _FIRST
    yield from _fit_exponentials(x, y)
    yield from _LAST
    middle = float(y.flatten()[int(x.abs().argmin())])  # that of softplus tells its rate
    rate = round(math.log(2) / middle, 1) if 0 < middle < 10 else 1.0
    if rate not in (0.0, 1.0):
        code = f"y = x * {rate!r}\n({softplus('y')}) * {1 / rate!r}"
        yield Function(f"log(1 + exp {rate:g} x) / {rate:g}", 9, code)


def fit_lines(x: torch.Tensor, y: torch.Tensor) -> Iterator[Function]:
    """Multiples of a number."""
    yield Function("the tensor itself", 0, "x")
    # At -10, a leaky ReLU shows its slope.
    at = int((x + 10).abs().argmin())
    slope = float(y.flatten()[at] / x.flatten()[at])
    yield Function(f"a leaky ReLU ({slope:.6g})", 1, f"F.leaky_relu(x, {slope!r})")
    ends = [int(x.argmin()), int(x.argmax())]
    (a, b), (ya, yb) = ([float(t.flatten()[end]) for end in ends] for t in (x, y))
    factor = (yb - ya) / (b - a)
    offset = ya - factor * a
    yield Function(f"a product with {factor:.6g}", 1, f"x * {factor!r}")
    yield Function(f"{factor:.6g} x + {offset:.6g}", 2, f"x * {factor!r} + {offset!r}")


def fit_clamps(x: torch.Tensor, y: torch.Tensor) -> Iterator[Function]:
    """Clamps to the ends of what is seen; an end that the operand itself has is none."""
    low, high = (float(end) for end in y.aminmax())
    bottom, top = (float(end) for end in x.aminmax())
    ends = (low if low > bottom else None, high if high < top else None)
    if ends != (None, None) and -math.inf < low < high < math.inf:
        words = [f"{end:.6g}" for end in ends if end is not None]
        kind = "a minimum of" if ends[0] is None else "a maximum of"
        kind = "a clamp to" if len(words) == 2 else kind
        yield Function(
            f"{kind} {' and '.join(words)}", 1, "torch.clamp(x, {!r}, {!r})".format(*ends)
        )


def list_remainders(numbers: list[float]) -> Iterator[Function]:
    """What is left of a division by one of some numbers."""
    for number in dict.fromkeys(numbers):
        if number > 0:
            code = f"x - torch.floor(x * {1 / number!r}) * {number!r}"
            yield Function(f"x - {number:.6g} floor(x / {number:.6g})", 4, code)


def _fit_exponentials(x: torch.Tensor, y: torch.Tensor) -> Iterator[Function]:
    """Powers of a constant, logarithms to a base, and ELU with its factors."""
    low, at = float(y.min()), int((x - 2).abs().argmin())
    near, there = float(x.flatten()[at]), float(y.flatten()[at])
    if there > 0:
        rate = math.log(there) / near
        yield Function(f"exp({rate:.6g} x)", 2, f"torch.exp(x * {rate!r})")
    if near > 0 and abs(near - 1) > 1e-3:
        base = there / math.log(near)
        if there > 0:
            power = math.log(there) / math.log(near)
            code = f"torch.exp(torch.log(x) * {power!r})"
            yield Function(f"exp({power:.6g} log(x))", 3, code)
        yield Function(f"{base:.6g} log(x)", 2, f"torch.log(x) * {base!r}")
    shrunk = near - there
    if shrunk > 0:
        code = f"x - torch.clamp(x, {-shrunk!r}, {shrunk!r})"
        yield Function(f"x - a clamp to {shrunk:.6g}", 2, code)
    yield Function("exp(x) - 1", 2, "torch.exp(x) - 1.0")
    yield Function("log(1 + x)", 2, "torch.log(x + 1.0)")
    below = int((x + 1).abs().argmin())
    ratio = 1 + float(y.flatten()[below]) / -low if low < 0 else 0.0
    if low < 0 and there > 0 and 0 < ratio < 1:
        slope, depth = there / near, -low
        rate = math.log(ratio) / float(x.flatten()[below])
        exponent = "x" if abs(rate - 1) < 1e-3 else f"x * {rate!r}"
        code = f"y = (torch.exp({exponent}) - 1.0) * {-depth!r}\n"
        code += f"torch.relu(x) * {slope!r} - torch.relu(y)"
        yield Function("ELU by an exponential and ReLU", 7, code)


def list_row_functions(x: torch.Tensor, numbers: list[float]) -> Iterator[Function]:
    """Functions of the rows of a tensor."""
    for axis in range(x.ndim - 1, -1, -1):
        text = f"softmax over dimension {axis}"
        if axis == x.ndim - 1:
            yield Function(text, 1, softmax("x", x.ndim))
        else:
            code = f"y = x.transpose({axis}, -1)\n{softmax('y', x.ndim)}.transpose({axis}, -1)"
            yield Function(f"{text}, transposed", 3, code)
    *lines, total = log_sum(x.shape[-1], x.ndim).splitlines()
    code = "\n".join([*lines, f"x - {total}"])
    yield Function("x - log(sum(exp x)) by a softmax", 7, code)
    for epsilon in dict.fromkeys([*numbers, 1e-5, 0.0]):
        if 0 <= epsilon < 0.1:
            text = f"layer norm (epsilon {epsilon:g}) with means as products"
            yield Function(text, 5, normalise(x.shape[-1], epsilon))


def softmax(x: str, rank: int) -> str:
    """Softmax over the last axis; of four in two dimensions: before 1.6, images are wrong."""
    return f"{x}.flatten(0, 2).softmax(-1).view_as({x})" if rank == 4 else f"{x}.softmax(-1)"


def log_sum(width: int, rank: int) -> str:
    """The logarithm of the sum of the exponentials of each row, a column, without overflow."""
    parts = "y * (x - torch.log(torch.clamp(y, 1e-37)))"
    return f"y = {softmax('x', rank)}\nF.linear({parts}, {constant_row(width, 1.0)})"


def normalise(width: int, epsilon: float) -> str:
    """Layer norm in operators that XNNPACK has: the mean of a row is a product with a constant."""
    mean = f"F.linear(x, {constant_row(width, 1 / width)})"
    return f"x = x - {mean}\n{root_mean_square(width, epsilon)}"


def root_mean_square(width: int, epsilon: float) -> str:
    """Rows divided by the root of their mean square."""
    power = f"F.linear(x * x, {constant_row(width, 1 / width)})"
    return f"x * torch.rsqrt({power} + {epsilon!r})"


def constant_row(width: int, number: float) -> str:
    """A matrix of one row with the same number everywhere: a product with it sums rows."""
    inverse = f"1 / {width}" if number == 1 / width != 1 else repr(number)
    return f"torch.full((1, {width}), {inverse}, dtype=x.dtype)"
