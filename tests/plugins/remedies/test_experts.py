"""Of experts whose gates are zero, or that nothing selects, only those are computed that count."""

import pytest
import torch
from function_net import Net
from rewriters import REWRITER
from torch import nn
from torch.nn import functional as fn

import workbench as wb

COUNT, WIDTH, HIDDEN = 8, 24, 40


class Expert(nn.Module):
    """A gated block, or a layer."""

    def __init__(self, bias):
        super().__init__()
        self.gate, self.up = (nn.Linear(WIDTH, HIDDEN, bias) for _ in range(2))
        self.down = nn.Linear(HIDDEN, WIDTH, bias)

    def forward(self, x):
        return self.down(fn.silu(self.gate(x)) * self.up(x))


def make(bias=False):
    return [nn.Linear(WIDTH, COUNT), *(Expert(bias) for _ in range(COUNT))]


def route(net, x, many=2):
    """The weights of the chosen experts, and which these are."""
    weights, chosen = net.layers[0](x).softmax(-1).topk(many, -1)
    return weights / weights.sum(-1, keepdim=True), chosen


def by_masks(net, x):
    weights, chosen = route(net, x, 1 if x.shape[1] == 2 else 2)
    y = torch.zeros_like(x)
    for n, expert in enumerate(net.layers[1:]):
        y = y + expert(x) * (weights * (chosen == n)).sum(-1, keepdim=True)
    return y


def by_maximum(net, x):
    weights, chosen = net.layers[0](x).softmax(-1).max(-1)
    y = torch.zeros_like(x)
    for n, expert in enumerate(net.layers[1:]):
        y = y + expert(x) * ((chosen == n).float() * weights)[..., None]
    return y


def by_scatter(net, x):
    weights, chosen = route(net, x)
    gates = torch.zeros(*x.shape[:-1], COUNT).scatter(-1, chosen, weights)
    return sum(gates[..., n : n + 1] * expert(x) for n, expert in enumerate(net.layers[1:]))


def by_scatter_in_place(net, x):
    """The shape of the gates is that of a layer, which is called again."""
    weights, chosen = route(net, x)
    gates = torch.zeros_like(net.layers[0](x)).scatter_(-1, chosen, weights)
    return sum(gates[..., n : n + 1] * expert(x) for n, expert in enumerate(net.layers[1:]))


def by_one_hot(net, x):
    weights, chosen = route(net, x)
    gates = (fn.one_hot(chosen, COUNT).float() * weights[..., None]).sum(-2)
    outputs = [expert(x) * gates[..., n, None] for n, expert in enumerate(net.layers[1:])]
    return torch.stack(outputs).sum(0)


def by_gather(net, x):
    weights, chosen = route(net, x)
    stacked = torch.stack([expert(x) for expert in net.layers[1:]], -2)
    y = stacked.gather(-2, chosen[..., None].expand(*chosen.shape, WIDTH))
    return (y * weights[..., None]).sum(-2)


def by_index(net, x):
    """One token."""
    weights, chosen = route(net, x)
    y = torch.stack([expert(x[0]) for expert in net.layers[1:]])[chosen.view(-1)]
    return (y[:, 0] * weights.view(-1, 1)).sum(0)[None, None]


def with_residual(net, x):
    """Gates by a scatter into zeros of the scores, what is there already, and a shared expert."""
    weights, chosen = route(net, x)
    gates = torch.zeros_like(net.layers[0](x)).scatter(-1, chosen, weights)
    *experts, shared = net.layers[1:]
    y = x + torch.sigmoid(x[..., :1]) * shared(x)
    for n, expert in enumerate(experts):
        y = y + gates[..., n : n + 1] * expert(x)
    return y


ONE, TWO = (1, 1, WIDTH), (1, 2, WIDTH)
CHOSEN = {
    "masks": (by_masks, ONE, make()), "masks of two tokens": (by_masks, TWO, make(True)),
    "a maximum": (by_maximum, ONE, make()),
    "a scatter": (by_scatter, ONE, make(True)), "in place": (by_scatter_in_place, ONE, make()),
    "rows of ones": (by_one_hot, ONE, make()),
    "a residual": (with_residual, ONE, [*make(), Expert(False)]),
    "a gather": (by_gather, ONE, make()), "an index": (by_index, ONE, make(True)),
}  # fmt: skip


def dense(net, x):
    gates = net.layers[0](x).softmax(-1)
    return sum(gates[..., n : n + 1] * expert(x) for n, expert in enumerate(net.layers[1:]))


def shared_gate(net, x):
    """The first expert counts for each token."""
    weights, chosen = route(net, x)
    y = 0.0
    for n, expert in enumerate(net.layers[1:]):
        y = y + expert(x) * ((weights * (chosen == n)).sum(-1, keepdim=True) + float(n == 0))
    return y


def read_elsewhere(net, x):
    outputs = [expert(x) for expert in net.layers[1:]]
    weights, chosen = route(net, x)
    y = sum((weights * (chosen == n)).sum(-1, True) * e for n, e in enumerate(outputs))
    return y, outputs[3]


KEPT = {
    "dense gates": (dense, ONE, make()), "a gate that is never zero": (shared_gate, ONE, make()),
    "many tokens": (by_masks, (1, 16, WIDTH), make()),
    "a result that is read": (read_elsewhere, ONE, make()),
    "one layer for all": (by_masks, ONE, [make()[0]] + [make()[1]] * COUNT),
}  # fmt: skip


def rewrite(function, shape, layers):
    torch.manual_seed(0)
    module, x = Net(function, *layers).eval(), torch.randn(shape)
    exported = wb.rewrite(torch.export.export(module, (x,)), "experts")
    for _ in range(3):
        torch.testing.assert_close(exported.module()(x), module(x), rtol=1e-4, atol=1e-5)
        x = torch.randn(shape)
    return exported, exported.changes["experts"]


@pytest.mark.parametrize("case", CHOSEN)
def test_only_chosen_experts_are_computed(case):
    exported, count = rewrite(*CHOSEN[case])
    assert count == 1
    targets = [str(node.target) for node in exported.graph.nodes]
    assert targets.count("aten.linear.default") == (4 if case == "a residual" else 1), "the gate"
    assert any("bmm" in target for target in targets)


def test_what_remains_is_the_share_of_those_that_are_chosen():
    exported = torch.export.export(Net(by_masks, *make()).eval(), (torch.randn(ONE),))
    names = {node.name: [node.name] for node in exported.graph.nodes}
    offers = REWRITER.offer(exported, "xnnpack", names, names)
    assert {each.name: each.kept for each in offers}["experts"] == pytest.approx(2 / COUNT)


def test_weights_are_not_there_twice():
    exported, _ = rewrite(*CHOSEN["masks"])
    read = [node for node in exported.graph.nodes if node.op == "placeholder" and node.users]
    size = sum(node.meta["val"].numel() for node in read)
    assert size == 3 * COUNT * WIDTH * HIDDEN + COUNT * (WIDTH + 1) + WIDTH


@pytest.mark.parametrize("case", KEPT)
def test_experts_that_count_stay(case):
    assert rewrite(*KEPT[case])[1] == 0


def chosen_matrices(net, x):
    """A gate, the matrices that it chose of each kind, and what stays of it."""
    weights, chosen = route(net, x)
    return weights, chosen, net.up, net.down


def by_batches(net, x):
    """A copy of the weights for each token and expert, as batched implementations have it."""
    weights, chosen, up, down = chosen_matrices(net, x)
    h = up[chosen.flatten()] @ x.repeat_interleave(2, 0)[..., None]
    y = torch.bmm(down[chosen.flatten()], fn.silu(h)).squeeze(-1)
    return (y * weights.flatten()[:, None]).unflatten(0, (-1, 2)).sum(1)


def by_einsum(net, x):
    weights, chosen, up, down = chosen_matrices(net, x)
    h = torch.einsum("tkoi,ti->tko", up[chosen], x)
    y = torch.einsum("tkoi,tki->tko", down[chosen], fn.silu(h))
    return (y * weights[..., None]).sum(1)


def by_embedding(net, x):
    """Weights as the rows of a table, and rows of tokens in front of them."""
    weights, chosen, up, down = chosen_matrices(net, x)
    one = fn.embedding(chosen[:, 0], up.flatten(1)).view(len(x), HIDDEN, WIDTH)
    other = fn.embedding(chosen[:, 0], down.flatten(1)).view(len(x), WIDTH, HIDDEN)
    return (fn.silu(x[:, None] @ one.mT) @ other.mT)[:, 0] * weights[:, :1]


def by_sums(net, x):
    weights, chosen, up, down = chosen_matrices(net, x)
    h = fn.silu((up[chosen[:, 0]] * x[:, None]).sum(-1))
    return (down[chosen[:, 0]] * h[:, None]).sum(-1, keepdim=True)[..., 0] * weights[:, :1]


def by_an_index_from_the_end(net, x):
    """Some columns for each matrix; the last dimension of both is that of the sum."""
    _, chosen, up, _ = chosen_matrices(net, x)
    return up[chosen[:, 0] - COUNT] @ x[:, :, None].expand(-1, -1, 3).cumsum(-1)


@pytest.mark.parametrize(
    "function", [by_batches, by_einsum, by_embedding, by_sums, by_an_index_from_the_end]
)
def test_for_many_tokens_no_weights_are_copied(function):
    torch.manual_seed(0)
    weights = {"up": torch.randn(COUNT, HIDDEN, WIDTH), "down": torch.randn(COUNT, WIDTH, HIDDEN)}
    module, x = Net(function, make()[0], **weights).eval(), torch.randn(16, WIDTH)
    exported = wb.rewrite(torch.export.export(module, (x,)), "experts")
    count = 1 if function is by_an_index_from_the_end else 2
    assert exported.changes["experts"] == count
    for _ in range(3):
        torch.testing.assert_close(exported.module()(x), module(x), rtol=1e-4, atol=1e-4)
        x = torch.randn(16, WIDTH)
    few = torch.export.export(module, (torch.randn(1, WIDTH),))
    assert wb.rewrite(few, "experts").changes["experts"] == 0, "reading all would take longer"
