"""What a rewrite computes is the same, and it is found in any spelling."""

import math
import sys
from pathlib import Path

import pytest
import torch
from exporting import export_quietly, slow
from needed import needs
from torch import nn

import workbench as wb
from workbench.models.loader import LoadedModel
from workbench.models.zoo.toy_cnn import fill_weights
from workbench.options import COMMON_REWRITES, OPTIONAL_REWRITES
from workbench.plugins.remedies.equivalence import Finder
from workbench.plugins.remedies.rewrite import REWRITER, find_remedies
from workbench.plugins.remedies.single_operators import RULES, Rule
from workbench.process import silence

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from _exam import CASES


class Wordy(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(6)
        self.norm.weight.data, self.norm.bias.data = torch.arange(6.0), 1 - torch.arange(6.0)

    def forward(self, x):
        first, second, third = x.unbind(1)
        left, right = (first + second[:, :]).chunk(2, -1)
        one, two = third.split([4, 2], -1)
        picked = x.select(1, -1).mean(-1)
        powers = (x.abs() + 1) ** 0.5 + x**2 + x**3
        means = x.reshape(1, 2, 3, 6).mean((2, 3))
        return left, right, one, two, picked, means, powers, nn.functional.gelu(x), self.norm(x)


@pytest.mark.parametrize(
    ("name", "gone"),
    [("slices", ("unbind", "chunk", "split", "select")), ("mean", ()), ("powers", ("pow",)),
     ("gelu_tanh", ("gelu",)), ("norms", ("layer_norm",))],
)  # fmt: skip
def test_optional_rewrites_compute_the_same(name, gone):
    x = torch.randn(2, 3, 6)
    with silence():
        exported = torch.export.export(Wordy(), (x,))
        counts = REWRITER.apply(exported, [name], "xnnpack")
    assert counts
    called = {str(node.target) for node in exported.graph.nodes}
    assert not any(f"aten.{word}" in target for word in gone for target in called)
    tolerance = 1e-3 if "approximation" in OPTIONAL_REWRITES[name] else 3e-6
    for ours, theirs in zip(exported.module()(x), Wordy()(x), strict=True):
        torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        kinds = (nn.GRU, nn.LSTM, nn.RNN)
        self.layers = nn.ModuleList(kind(6, 6, batch_first=True) for kind in kinds)

    def forward(self, x):
        for layer in self.layers:
            x, _ = layer(x)
        return x


@pytest.mark.cases
def test_slices_unroll_recurrent_layers_into_the_delegate(tmp_path):
    x = torch.randn(1, 3, 6)
    sliced = wb.ExportOptions(rewrite=("slices",))
    program = wb.export_model(Recurrent(), x, options=sliced, root=tmp_path)
    outside = {row.operator.partition(".")[0] for row in program.export.undelegated}
    assert not outside & {"aten::split_with_sizes_copy", "aten::squeeze_copy"}
    assert program.export.fidelity[0].faithful and "-slices" in program.path.name


def softmax_by_hand(x):
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


def norm_by_hand(x):
    d = x - x.mean(-1, keepdim=True)
    return d / torch.sqrt(d.square().mean(-1, keepdim=True) + 1e-6)


torch.manual_seed(0)  # of the layers below
IMAGE, IDS = torch.randn(1, 8, 6, 6), torch.randint(0, 10, (2, 3))
NARROW, HEAD, TABLE = nn.Conv2d(8, 4, 1), nn.Linear(6, 4), nn.Linear(10, 4)
#: By what is found (nothing where the two differ): a function of a tensor, in some spelling.
SPELLINGS = [
    ("hard swish", lambda x: x * torch.clamp(x + 3, 0, 6) / 6, IMAGE),
    ("hard swish", lambda x: x.add(3).clamp_(0, 6).div_(6) * x, IMAGE),
    ("hard swish", lambda x: torch.where(x < -3, 0 * x, torch.where(x > 3, x, x * (x + 3) / 6)),
     IMAGE),
    ("", lambda x: x * torch.clamp(x + 3, 0, 5) / 6, IMAGE),
    ("GELU by tanh", lambda x: x / 2 * (1 + (0.79788456 * (x + 0.044715 * x**3)).tanh()), IMAGE),
    ("GELU", lambda x: 0.5 * x * (1 + torch.erf(x / 2**0.5)), IMAGE),
    ("SiLU", lambda x: x / (1 + torch.exp(-x)), IMAGE),
    ("a clamp to 0 and 6", lambda x: torch.minimum(x.relu(), torch.tensor(6.0)), IMAGE),
    ("a leaky ReLU", lambda x: torch.where(x > 0, x, 0.1 * x), IMAGE),
    ("a sigmoid", lambda x: x.permute(0, 2, 3, 1).sigmoid().permute(0, 3, 1, 2), IMAGE),
    ("softmax over dimension 3", softmax_by_hand, IMAGE),
    ("layer norm (epsilon 1e-06)", norm_by_hand, IMAGE),
    ("", lambda x: x - x.mean(-1, keepdim=True), IMAGE),
    ("conv2d before upsample", lambda x: NARROW(nn.functional.interpolate(x, scale_factor=2)),
     IMAGE),
    ("", lambda x: NARROW(nn.functional.pad(x, (3, 3, 3, 3))), IMAGE),
    ("conv2d after avg_pool2d", lambda x: nn.functional.avg_pool2d(NARROW(x), 2), IMAGE),
    ("", lambda x: nn.functional.avg_pool2d(NARROW(x).relu(), 2), IMAGE),
    ("linear after select", lambda x: HEAD(x).relu()[:, 0], IMAGE),
    ("rows of a table", lambda x: TABLE(nn.functional.one_hot(x, 10).float()), IDS),
    ("rows of a table", lambda x: (x[..., None] == torch.arange(10)).float() @ TABLE.weight.T, IDS),
    ("", lambda x: (x[..., None] >= torch.arange(10)).float() @ TABLE.weight.T, IDS),
    ("", lambda x: nn.functional.layer_norm(x, (6,)), torch.randn(1, 1, 6)),
    ("linear after slice", lambda x: (x + HEAD(x).relu() @ HEAD.weight).relu()[:, -1:], IMAGE),
]  # fmt: skip


class Spelled(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function, self.layers = function, nn.ModuleList([NARROW, HEAD, TABLE])

    def forward(self, x):
        return self.function(x)


def offer(exported):
    """What computes the same in fewer operators, or with less work."""
    names = ("functions", "order", "lookups")
    return list(find_remedies(Finder(exported), names, "xnnpack"))


@pytest.mark.parametrize(("text", "function", "x"), SPELLINGS)
def test_what_computes_the_same_is_found_in_any_spelling(text, function, x):
    module = Spelled(function).eval()
    with silence():
        exported = torch.export.export(module, (x,))
        parts = offer(exported)
        offered = [each.text for each in parts]
        names = ("functions", "order", "lookups")
        counts = REWRITER.apply(exported, names, "xnnpack")
        result = exported.module()(x)
    assert [each[: len(text)] for each in offered] == [text] * bool(text), offered
    assert {*counts} == {each.name for each in parts}
    torch.testing.assert_close(result, module(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "case",
    [c for c in CASES if c.rule == "remedy" and not c.remedy and "rewrite" in c.fix],
    ids=lambda c: c.name,
)
def test_known_problems_are_offered_a_rewrite(case):
    torch.manual_seed(0)
    module, inputs = case.before()
    with silence():
        exported = torch.export.export(module.eval(), inputs)
        offered = [each for each in offer(exported) if case.word in each.text]
    assert offered and {each.name for each in offered} == {*case.fix["rewrite"]}


@pytest.mark.parametrize("text", ["conv2d before upsample", "conv2d after avg_pool2d"])
def test_a_part_in_another_order_is_tried_with_both_of_its_operators(text):
    (function, x), *_ = ((f, x) for name, f, x in SPELLINGS if name == text)
    (part,) = offer(torch.export.export(Spelled(function).eval(), (x,)))
    names = [str(node.target).split(".")[1] for node in part.nodes]
    assert len(names) == 2 and "conv2d" in names, "it is extracted, and rewritten alone"


@pytest.mark.parametrize(("function", "rewritten"), [
    (lambda x: torch.mm(x[0], x[0].T), 1), (lambda x: x @ (x[0].T * 2), 1),
    (lambda x: nn.functional.linear(x, x[0] + 1, x[0, :, 0]), 1),
    (lambda x: HEAD(x) @ HEAD.weight, 0),
])  # fmt: skip
def test_products_of_two_activations_become_batches_of_one(function, rewritten):
    x, module = torch.randn(2, 5, 6), Spelled(function).eval()
    with silence():
        exported = torch.export.export(module, (x,))
        counts = REWRITER.apply(exported, ["products"], "xnnpack")
        torch.testing.assert_close(exported.module()(x), module(x))
    assert sum(counts.values()) == rewritten


@pytest.mark.cases
def test_lines_are_those_of_functions_that_forward_calls(tmp_path):
    program = wb.export_model(Spelled(norm_by_hand), (torch.randn(2, 3, 6),), root=tmp_path)
    lines = {o.source.rpartition(":")[2] for m in program.layers.methods for o in m.origins}
    start = norm_by_hand.__code__.co_firstlineno
    assert lines == {str(start + 1), str(start + 2)}


@pytest.mark.parametrize("case", [c for c in CASES if c.after], ids=lambda c: c.name)
def test_networks_in_which_a_problem_is_fixed_are_offered_none(case):
    module, inputs = case.after()
    with silence():
        assert offer(torch.export.export(module.eval(), inputs)) == []


@pytest.mark.whole
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.softmax(1),
        slow(lambda x: x.softmax(2).argmax(2)),
        slow(softmax_by_hand),
        lambda x: x.log_softmax(3),
        slow(lambda x: x.logsumexp((1, 3))),
    ],
    ids=["channels", "places", "by hand", "logarithm", "sums"],
)
def test_functions_of_images_avoid_softmax_in_four_dimensions(function, tmp_path):
    """ExecuTorch 1.5.1's delegate normalises the channels, whatever the dimension."""
    module = Spelled(lambda x: function(NARROW(x))).eval()
    options = wb.ExportOptions(rewrite=("functions",))
    program = wb.export_model(module, IMAGE, options=options, root=tmp_path)
    assert not program.export.problem and program.export.fidelity[0].faithful


@pytest.mark.parametrize(("axis", "rewritten"), [(-1, 1), (3, 1), (1, 0)])
def test_softmax_of_an_image_is_kept_off_its_channels(axis, rewritten):
    """ExecuTorch 1.5.1's delegate normalises the channels instead of the last dimension."""
    module = Spelled(lambda x: NARROW(x).permute(0, 2, 3, 1).softmax(axis)).eval()
    with silence():
        exported = torch.export.export(module, (IMAGE,))
        counts = REWRITER.apply(exported, ["softmax"], "xnnpack")
        assert counts["softmax"] == rewritten
        torch.testing.assert_close(exported.module()(IMAGE), module(IMAGE))


@pytest.mark.cases
def test_the_program_of_a_softmax_of_an_image_is_right(tmp_path):
    module = Spelled(lambda x: NARROW(x).permute(0, 2, 3, 1).softmax(-1))
    options = wb.ExportOptions(rewrite=("softmax",))
    assert not wb.export_model(module, (IMAGE,), options, root=tmp_path).export.problem
    assert wb.export_model(module, (IMAGE,), root=tmp_path).export.cure.rewrites == ("softmax",)


class Attending(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.options = options

    def forward(self, q, k, v):
        return nn.functional.scaled_dot_product_attention(q, k, v, **self.options)


def rewritten(module, *inputs, backend="xnnpack"):
    """What a rewritten program returns, what the module does, and what was rewritten."""
    exported = torch.export.export(module, inputs)
    counts = REWRITER.apply(exported, COMMON_REWRITES, backend)
    return exported.module()(*inputs), module(*inputs), dict(counts)


@pytest.mark.parametrize(
    ("turn", "undone"),
    [
        (lambda x: x.transpose(1, 2).transpose(-1, 1), {}),
        (lambda x: x.transpose(1, 2).transpose(-2, 1), {"transposes": 1}),
        (lambda x: x.transpose(-3, 3).permute(0, 3, 2, -3), {"transposes": 1}),
        (lambda x: x.permute(0, 2, 3, 1).permute(0, 3, 1, 2), {"transposes": 1}),
        (lambda x: x.permute(0, 2, 3, 1).permute(0, 2, 3, 1), {}),
        (lambda x: x.permute(0, 2, 3, 1).add(1).permute(0, 3, 1, 2), {}),
        (lambda x: x.transpose(1, 2).transpose(1, 2).transpose(1, 2), {"transposes": 1}),
    ],
)
def test_transposes_that_undo_each_other_go(turn, undone):
    class Turned(nn.Module):
        def forward(self, x):
            return turn(x * 2) + 1

    ours, theirs, counts = rewritten(Turned(), torch.arange(120.0).reshape(2, 3, 4, 5))
    assert counts == undone
    assert ours.equal(theirs)


class Overwritten(nn.Module):
    """SiLU in place, of a tensor that is read again if asked for."""

    def __init__(self, again):
        super().__init__()
        self.again = again

    def forward(self, x):
        x = x + 1
        y = nn.functional.silu(x, inplace=True)
        return y + x if self.again else y


WIDE, FINE = torch.linspace(-300, 300, 60_001), torch.linspace(-20, 20, 4001)
QUERY, KEY = torch.randn(1, 2, 5, 8), torch.randn(1, 2, 7, 8)
MASK = torch.ones(5, 5, dtype=torch.bool)
#: A module, its inputs, what is rewritten and how far that may be from the module.
REWRITTEN = [
    (nn.Hardsigmoid(), [torch.linspace(-5, 5, 101)], "hardsigmoid", 1e-6),
    (nn.GELU(), [WIDE.half()], "gelu", 4e-3),
    (nn.GELU(), [WIDE], "", 0),
    *((module, [x], "silu" if x.dtype == torch.float16 else "", 2e-3)
      for module in (nn.SiLU(), Overwritten(False), Overwritten(True))
      for x in (FINE.half(), FINE)),
    (Attending(), [QUERY, KEY, KEY], "attention", 1e-5),
    (Attending(scale=0.3), [QUERY, KEY, KEY], "attention", 1e-5),
    (Attending(is_causal=True), [QUERY] * 3, "", 0),
    (Attending(attn_mask=MASK), [QUERY] * 3, "", 0),
    (Attending(enable_gqa=True), [QUERY, *[QUERY[:, :1]] * 2], "", 0),
]  # fmt: skip


@pytest.mark.parametrize(("module", "inputs", "name", "tolerance"), REWRITTEN)
def test_what_xnnpack_lacks_is_spelled_out_and_nothing_else(module, inputs, name, tolerance):
    ours, theirs, counts = rewritten(module, *inputs)
    assert sum(counts.values()) == bool(name) and all(name in each for each in counts)
    torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance)
    if name != "silu" and inputs[0].dtype != torch.float16:
        assert rewritten(module, *inputs, backend="portable")[2] == {}


@pytest.mark.whole
@pytest.mark.parametrize("backend", [slow("xnnpack"), "portable"])
@pytest.mark.parametrize("affine", [True, slow(False)])
def test_layer_norm_is_made_in_single_precision(affine, backend, tmp_path):
    """For rows of 256 in fp16, the runtime's kernel is wrong: its result has the noise of -4 dB."""
    torch.manual_seed(0)
    norm = nn.LayerNorm(256, elementwise_affine=affine)
    model = LoadedModel("norm", norm, (torch.randn(1, 4, 256),))
    options = {"dtype": "fp16", "backend": backend}
    plain = export_quietly(model, tmp_path, **options)
    assert plain.cause.operator == "layer_norm" and plain.cure.rewrites == ("layer_norm",)
    export = export_quietly(model, tmp_path, rewrite=("layer_norm",), **options)
    assert export.options == {"rewritten": "1 layer_norm"} and export.rewrite == ("layer_norm",)
    assert export.fidelity[0].sqnr_db > 60
    assert rewritten(norm, torch.randn(1, 4, 256))[2] == {}


class Called(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function, self.layer = function, nn.Conv2d(4, 4, 1).requires_grad_(False)

    def forward(self, x):
        return self.function(self.layer, x)


def add_in_place(layer, x):
    total, steps = torch.zeros(4, 4), []
    for i in range(4):
        total.add_(x[i])
        steps.append(total.tanh())
    return torch.stack(steps)


def change_twice(layer, x):
    y = x * 1
    for i in range(4):
        y[i].mul_(2).add_(1)
    return y


def read_padded(layer, x):
    y = nn.functional.pad(x.tanh(), (1, 1))[..., 1:-1]
    return y.relu_() + 1


def change_chosen(layer, x):
    y = x * 2
    z = torch.where((y > 0) & (y < 1), y, y)
    y[:1].mul_(2).add_(1)
    return z, y + 1


#: Numbers that are not chosen, or not compared by their difference, among them infinite ones.
UNEVEN = torch.tensor([-1.0, 0.0, 2.0, math.inf, -math.inf, math.nan]).repeat(3, 1)


@pytest.mark.parametrize(
    ("function", "x"),
    [
        (lambda layer, x: torch.where(x > 0, x.log(), torch.zeros_like(x)), UNEVEN[:, :3]),
        (lambda layer, x: torch.where(x != 0, 1 / x, 0.0), UNEVEN[:, :3]),
        (lambda layer, x: x.sqrt().masked_fill(x < 0, 0.0), UNEVEN[:, :3]),
        (lambda layer, x: torch.where(x == -math.inf, 1.0, x.sigmoid() * 2), UNEVEN[:, :5]),
        (lambda layer, x: torch.where(x != x, 0.0, x.sigmoid() * 2), UNEVEN),
        (lambda layer, x: layer(x) * torch.arange(6.0).double(), torch.randn(1, 4, 6, 6)),
        (
            lambda layer, x: nn.functional.max_pool2d(x, 2).relu() * 1e6,
            -torch.ones(1, 4, 6, 6).half(),
        ),
        (lambda layer, x: (x * 2).masked_fill(x.isinf(), 0.0), UNEVEN),
        (lambda layer, x: x * (x > 0).any(-1, keepdim=True), -torch.ones(3, 5, 6)),
        (add_in_place, torch.randn(4, 4, 4)),
        (change_twice, torch.randn(4, 4, 4)),
        (change_chosen, torch.randn(4, 4, 4)),
        (read_padded, torch.randn(4, 4, 4)),
    ],
)
def test_remedies_leave_what_they_would_change(function, x):
    module = Called(function)
    with silence():
        exported = torch.export.export(module, (x,))
        expected = exported.module()(x)
        REWRITER.apply(
            exported, ["layouts", "loops", "functions", "masks", "assignments"], "xnnpack"
        )
    torch.testing.assert_close(exported.module()(x), expected, equal_nan=True)


def test_a_remedy_that_raises_is_logged_and_the_others_apply(monkeypatch, no_remedy_fails):
    def divide(result, x, axes, keeps, dtype):
        return x / (1 // 0)

    monkeypatch.setitem(RULES["mean"], torch.ops.aten.mean.dim, Rule(divide))
    module = Spelled(lambda x: x.mean((2, 3)) ** 2)
    exported = torch.export.export(module, (torch.randn(1, 2, 3, 4),))
    assert REWRITER.apply(exported, ["mean", "powers"], "xnnpack") == {"powers": 1}
    assert "remedy mean fails at mean: ZeroDivisionError" in no_remedy_fails[0]
    no_remedy_fails.clear()


def test_rewrites_keep_their_origin():
    exported = torch.export.export(nn.Sequential(nn.Hardsigmoid()), (torch.ones(2),))
    REWRITER.apply(exported, ["hardsigmoid"], "xnnpack")
    nodes = [node for node in exported.graph.nodes if node.op == "call_function"]
    assert len(nodes) == 3
    assert all("hardsigmoid" in node.meta["stack_trace"] for node in nodes)
    assert all(node.meta["nn_module_stack"] for node in nodes)


@pytest.mark.cases
@needs("zoo")
def test_rewriting_leaves_nothing_behind(tmp_path):
    """A block of MobileNetV3 in half precision: one delegate, where there were several."""
    from workbench.plugins.zoo.mobilenet_v3_small import InvertedResidual

    torch.manual_seed(0)
    block = InvertedResidual(16, 3, 16, 16, True, nn.Hardswish, 1)
    model = LoadedModel("block", fill_weights(block), (torch.randn(1, 16, 8, 8),))
    ours = export_quietly(model, tmp_path, dtype="fp16", rewrite=("all",))
    plain = export_quietly(model, tmp_path, dtype="fp16")
    assert ours.rewrite == ("hardsigmoid", "casts")
    assert ours.changes == "with 2 rewrites: hardsigmoid, casts"
    assert (plain.rewrite, plain.changes) == ((), "as ExecuTorch exports it")
    assert (sum(ours.delegates.values()), ours.undelegated) == (1, ())
    assert (sum(plain.delegates.values()), plain.undelegated[0].count) == (3, 4)


@pytest.mark.whole
def test_a_rewrite_is_asked_for_and_told(tmp_path):
    model = LoadedModel("attention", Attending(), (QUERY, KEY, KEY))
    export, plain = (export_quietly(model, tmp_path, rewrite=names) for names in (("all",), ()))
    assert export.sha256 != plain.sha256 and export.graph == plain.graph
    assert export.changes == "with 1 rewrite: attention"
    assert "1 attention" in export.options["rewritten"]
