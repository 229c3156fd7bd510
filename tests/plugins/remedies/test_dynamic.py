"""Remedies of graphs with dynamic sizes, and in half precision."""

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower
from executorch.runtime import Runtime
from function_net import Net
from rewriters import REWRITER
from torch.nn import functional as fn

import workbench as wb


@pytest.mark.parametrize(("name", "function"), [
    ("powers", lambda net, x: (x.abs() + 1) ** 0.5),
    ("gelu_tanh", lambda net, x: fn.gelu(x)),
    ("hardsigmoid", lambda net, x: fn.hardsigmoid(x)),
    ("attention", lambda net, x: fn.scaled_dot_product_attention(x, x, x)),
    ("transposes", lambda net, x: x.transpose(1, 2).transpose(1, 2).sin()),
    ("norms", lambda net, x: fn.layer_norm(x, (8,))),
    ("norms", lambda net, x: fn.rms_norm(x, (8,))),
    ("norms", lambda net, x: x / (1 + x.var(-1, keepdim=True))),
    ("norms", lambda net, x: x.norm(dim=-1)),
    ("matrices", lambda net, x: x.sum(-1)),
    ("layouts", lambda net, x: fn.avg_pool2d(x[:, None], 2).tanh() * 0.5),
])  # fmt: skip
def test_a_remedy_takes_any_batch(name, function):
    module, x = Net(function).eval(), torch.randn(3, 6, 8)
    sizes = ({0: torch.export.Dim("batch", min=2, max=64)},)
    exported = torch.export.export(module, (x,), dynamic_shapes=(sizes,))
    calls = {node.name: [node.name] for node in exported.graph.nodes}
    offers = REWRITER.offer(exported, "xnnpack", calls, calls)
    assert name in {each.name for each in offers}
    exported = wb.rewrite(exported, name)
    assert exported.changes == {name: 1}
    for batch in (2, 5):
        x = torch.randn(batch, 6, 8)
        torch.testing.assert_close(exported.module()(x), module(x), atol=5e-4, rtol=1e-4)
    exported.run_decompositions({})


def test_constants_of_several_remedies_are_lowered():
    """Two delegates read the same numbers, one of them twice."""

    def scale(net, x):
        x = fn.rms_norm(fn.layer_norm(x, (8,)) @ torch.eye(8), (8,))
        x = (x * x.mean(-1, keepdim=True)).cumsum(0)
        return x / (x.var(-1, keepdim=True) + 1)

    module, x = Net(scale).eval(), torch.randn(3, 6, 8)
    exported = wb.rewrite(torch.export.export(module, (x,)), "norms,matrices")
    edge = to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()])
    program = Runtime.get().load_program(edge.to_executorch().buffer)
    (result,) = program.load_method("forward").execute([x])
    torch.testing.assert_close(result, module(x), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["groups", "masks"])
def test_causal_attention_in_half_precision_has_its_remedy(name):
    repeats = 2 if name == "groups" else 1

    def attend(net, q, k):
        k = k.repeat_interleave(repeats, 1)
        return fn.scaled_dot_product_attention(q, k, k, is_causal=True)

    shapes = (1, 4, 5, 8), (1, 4 // repeats, 5, 8)
    module, inputs = Net(attend).eval(), [torch.randn(shape).half() for shape in shapes]
    exported = wb.rewrite(torch.export.export(module, (*inputs,)), name)
    assert exported.changes == {name: 1}
    torch.testing.assert_close(exported.module()(*inputs), module(*inputs), atol=5e-3, rtol=1e-2)


def test_a_new_tensor_beside_dynamic_ones_leaves_their_sizes_open():
    module = Net(lambda net, x: torch.cat((x, x.new_zeros(1, 6, 8))).exp()).eval()
    sizes = ({0: torch.export.Dim("batch", min=2, max=64)},)
    x = torch.randn(3, 6, 8)
    exported = torch.export.export(module, (x,), dynamic_shapes=(sizes,))
    rewritten, x = wb.rewrite(exported, ("functions", "loops")), torch.randn(5, 6, 8)
    torch.testing.assert_close(rewritten.module()(x), module(x))
