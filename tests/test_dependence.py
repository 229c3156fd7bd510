"""What each node of a graph depends on, and which part of a model may be computed once."""

import inspect

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from needed import needs
from steps import STEPS, Attention, Together, decoder
from torch import nn
from torch._higher_order_ops.map import map as repeat
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

import workbench as wb
from workbench.export.dependence import Dependence
from workbench.export.part import record_values
from workbench.export.staying_inputs import guess_staying
from workbench.export.traced import trace_model
from workbench.upstream import tree_leaves

#: Steps of random networks: functions of the module and of two tensors of 3 x 4. Their results are
#: contiguous: of others, PyTorch refuses views and writes.
STEPS_OF_TWO = {
    "add": lambda net, x, y: x + y,
    "sine": lambda net, x, y: x.sin(),
    "linear": lambda net, x, y: net.layer(x),
    "joined": lambda net, x, y: torch.cat((x[:1], y[1:])),
    "views": lambda net, x, y: x.view(4, 3).T.reshape(12).view(3, 4) + y[:, :1],
    "in place": lambda net, x, y: x.mul_(y[0].clone()),
    "into a view": lambda net, x, y: (x.view(12)[2:6].copy_(y[1].clone()), x)[1],
    "into a row": lambda net, x, y: (x[0].add_(y[2].clone()), x)[1],
    "parts": lambda net, x, y: (x.chunk(2, 1)[1].add_(y[:, :2].clone()), x)[1],
    "zeroed": lambda net, x, y: x.clone().zero_() + y,
    "same type": lambda net, x, y: (x.type_as(y).add_(y.clone()), x)[1],
    "grid": lambda net, x, y: torch.meshgrid(x.view(12), y[1, :1], indexing="ij")[0].view(3, 4),
    "written": lambda net, x, y: (net.state.copy_(x), y)[1],
    "half written": lambda net, x, y: (net.state[1].copy_(x[0]), y)[1],
    "read": lambda net, x, y: net.state + x,
    "counted": lambda net, x, y: (net.count.add_(1), x)[1],
    "chosen": lambda net, x, y: torch.cond(
        y.sum() > 0, lambda a: (a.sin(), a.cos()), lambda a: (a.cos(), a.exp()), (x.clone(),)
    )[0],
    "looped": lambda net, x, y: while_loop(
        lambda i, a: i.sum() < 2, lambda i, a: (i + 1, a + y), (torch.zeros(1), x.clone())
    )[1],
    "scanned": lambda net, x, y: scan(lambda a, b: (a + b, a * 1.0), x[0].clone(), y.clone())[1],
    "repeated": lambda net, x, y: repeat(lambda row, z: row.sin() + z[0], x.clone(), y.clone()),
}  # fmt: skip


class Random(nn.Module):
    """Tensors that are made of the inputs and of each other, as a plan says."""

    def __init__(self, plan):
        super().__init__()
        self.plan, self.layer = plan, nn.Linear(4, 4).requires_grad_(False)
        self.register_buffer("state", torch.ones(3, 4))
        self.register_buffer("count", torch.zeros(1))
        self.register_buffer("table", torch.ones(4))

    def forward(self, a, b, c):
        tensors = [a * 1.5, b * self.table, c * 0.5]
        for name, one, other in self.plan:
            x, y = (tensors[place % len(tensors)] for place in (one, other))
            tensors.append(STEPS_OF_TWO[name](self, x, y))
        return tensors[-1], self.state * 2, self.count * 1


def trace(module, inputs):
    return torch.export.export(module.eval(), inputs)


def run(exported, inputs, state):
    """The values of all nodes, by name."""
    module = exported.module()
    for name, value in state.items():
        module.get_buffer(name).copy_(value)
    values = record_values(module, [x.clone() for x in inputs])
    return {node.name: value for node, value in values.items() if node.op == "call_function"}


plans = st.lists(
    st.tuples(st.sampled_from(sorted(STEPS_OF_TWO)), st.integers(0, 9), st.integers(0, 9)),
    min_size=1, max_size=5,
)  # fmt: skip


def check(plan):
    """What changes with an input or a buffer must be said to depend on it."""
    inputs = tuple(torch.rand(3, 4) for _ in range(3))
    exported = trace(Random(plan), inputs)
    dependence = Dependence(exported)
    of = {node.name: dependence.of(node) for node in exported.graph.nodes}
    state = {"state": torch.rand(3, 4), "count": torch.rand(1)}
    before = run(exported, inputs, state)
    for place, name in enumerate("abc"):
        changed = [x + 0.5 * (n == place) for n, x in enumerate(inputs)]
        compare(before, run(exported, changed, state), of, name)
    for name in dependence.written:
        value = state[name]
        compare(before, run(exported, inputs, state | {name: value + 0.5}), of, name)


def compare(before, after, of, name):
    for node, value in before.items():
        pairs = zip(tree_leaves(value), tree_leaves(after[node]), strict=True)
        same = all(torch.equal(x, y) for x, y in pairs if isinstance(x, torch.Tensor))
        assert same or name in of[node], f"{node} changes with {name}, not said of {of[node]}"


@pytest.mark.whole
@given(plan=plans)
def test_what_changes_with_an_input_depends_on_it(plan):
    check(plan)


@pytest.mark.parametrize("step", STEPS_OF_TWO)
def test_each_kind_of_operator(step):
    check([(step, 0, 1), ("add", 3, 2), ("read", 4, 0)])


def test_what_depends_on_one_input_is_not_said_to_depend_on_others():
    module, inputs = STEPS["decoder"][0]()
    exported = trace(module, inputs)
    dependence = Dependence(exported)
    cones = {cone.inputs: cone for cone in dependence.list_cones(exported.graph.nodes)}
    assert {*cones} == {("ids",), ("states",), ("ids", "states")}
    projections = [name for name in cones["states",].nodes if name.startswith("linear")]
    assert len(projections) == 4, "keys and values of two layers"


def test_a_written_buffer_depends_on_what_is_written():
    module = Random([("written", 0, 1), ("read", 2, 0)])
    exported = trace(module, tuple(torch.rand(3, 4) for _ in range(3)))
    dependence = Dependence(exported)
    assert dependence.written.keys() == {"state"}
    states = {state: cone.inputs for cone in dependence.list_cones([]) for state in cone.states}
    assert states == {"state": ("a",)}
    *_, read = (node for node in exported.graph.nodes if node.name.startswith("add"))
    assert dependence.of(read) == {"a", "c"}, "what the state was before does not matter"


def test_random_numbers_are_a_source_and_dropout_of_an_evaluated_model_is_none():
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop = nn.Dropout(0.5)

        def forward(self, x):
            return self.drop(x) + 1, x + torch.rand(3)

    exported = trace(Noisy(), (torch.rand(3),))
    dependence = Dependence(exported)
    results = exported.graph.output_node().args[0]
    assert [dependence.is_random(node) for node in results] == [False, True]


@pytest.mark.parametrize("name", STEPS)
def test_inputs_that_stay_are_guessed_from_what_attention_reads(name):
    make, staying = STEPS[name]
    exported = trace(*make())
    assert guess_staying(exported, Dependence(exported)) == staying


@needs("remedies")
@pytest.mark.parametrize("name", [name for name in STEPS if STEPS[name][1]])
def test_both_parts_of_a_model_compute_what_it_does(name):
    make, constant = STEPS[name]
    module, inputs = make()
    parts = wb.split(module.eval(), inputs, constant=constant)
    given = dict(zip(inspect.signature(module.forward).parameters, inputs, strict=True))
    between = parts.once(*(given[name] for name in parts.constant))
    for name in parts.others:  # another call
        given[name] = given[name].flip(-1)
    result = parts.each(*(given[name] for name in parts.others), *between)
    torch.testing.assert_close(result, module(**given))


#: How keys and values are taken of one projection.
TAKEN = {
    "halves": lambda y: y.chunk(2, -1),
    "slices": lambda y: (y[..., :64], y[..., 64:]),
    "an axis": lambda y: y.unflatten(-1, (2, -1)).unbind(-2),
    "an axis in front": lambda y: y.unflatten(-1, (2, -1)).permute(2, 0, 1, 3),
    "turns": lambda y: (y[..., ::2], y[..., 1::2]),
}


@needs("remedies")
@needs("remedies")
@pytest.mark.parametrize("take", [None, *TAKEN])
def test_keys_and_values_of_each_layer_are_computed_once(take):
    make = (lambda width: Together(width, TAKEN[take])) if take else Attention
    module, (ids, states) = decoder(make=make)
    parts = wb.split(module.eval(), (ids, states), constant="states")
    between = parts.once(states)
    assert [each.shape for each in between] == [(1, 4, 50, 16)] * 4
    torch.testing.assert_close(parts.each(ids.flip(1), *between), module(ids.flip(1), states))
    given = [node for node in parts.each.graph.nodes if node.name in parts.border]
    readers = {str(user.target) for node in given for user in node.users}
    assert readers == {"aten.scaled_dot_product_attention.default"}


def test_parts_of_a_projection_are_not_copied_by_each_call():
    class Scores(nn.Module):
        def __init__(self):
            super().__init__()
            self.both = nn.Linear(8, 16)

        def forward(self, x, context):
            y = self.both(context)
            weights = torch.einsum("qd,kd->qk", x, y[:, :8]).softmax(-1)
            return torch.einsum("qk,kd->qd", weights, y[:, 8:])

    net, x, context = Scores().eval(), torch.rand(2, 8), torch.rand(500, 8)
    parts = wb.split(net, (x, context), constant="context")
    between = parts.once(context)
    assert [each.shape for each in between] == [(500, 8)] * 2
    torch.testing.assert_close(parts.each(x, *between), net(x, context))


class Counted(nn.Module):
    """A cache that each call writes, beside a projection of what stays."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x, context):
        self.calls.add_(1)
        keys = self.layer(context).relu_()
        return x @ keys.expand(2, 4, 4) + self.calls, keys[:1]


@needs("remedies")
@needs("remedies")
def test_state_is_written_by_each_call_and_not_by_trying_them():
    net, (x, context) = Counted().eval(), (torch.rand(2, 3, 4), torch.rand(4, 4))
    parts = wb.split(net, (x, context), constant="context")
    assert parts.border == ("relu_",), "what it is expanded to is larger"
    between = parts.once(context)
    for _ in range(2):
        torch.testing.assert_close(parts.each(x, *between), net(x, context))


def test_an_exported_program_is_split_and_its_parts_are_cut_out():
    module, inputs = STEPS["captions"][0]()
    exported = trace(module, inputs)
    parts = wb.split(exported, constant="features")
    expected = module(*inputs)
    torch.testing.assert_close(parts.each(inputs[0], *parts.once(inputs[1])), expected)
    from workbench.plugins.remedies.subgraphs import Subgraphs

    model = wb.load_model(exported)
    part = Subgraphs(model, exported, [["gelu"]]).extract(["gelu"])
    assert len(trace_model(part).exported.graph.nodes) < len(exported.graph.nodes)


@needs("remedies")
@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("x", "features", "ids"), "no input is left that changes"),
        (("feature",), "did you mean 'features'"),
        (("x",), "nothing is computed from these alone"),
    ],
)
def test_inputs_that_cannot_stay_are_refused(names, message):
    class Sum(nn.Module):
        def forward(self, x, features, ids):
            return features.exp() + ids + x

    inputs = torch.rand(3), torch.rand(3), torch.rand(3)
    with pytest.raises(wb.WorkbenchError, match=message):
        wb.split(Sum(), inputs, constant=names)
