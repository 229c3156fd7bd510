"""Branches of one input, and layers in a row, become one layer if that is less work."""

import pytest
import torch
from function_net import Net
from torch import nn
from torch.nn import functional as fn

import workbench as wb

IMAGE, ROWS, SERIES = (1, 16, 14, 13), (1, 9, 32), (2, 16, 40)


def norm(count, axes=2):
    """A batch norm with statistics of its own."""
    layer = (nn.BatchNorm1d if axes == 1 else nn.BatchNorm2d)(count).eval()
    for tensor in (layer.weight.data, layer.running_var):
        tensor.uniform_(0.5, 2.0)
    for tensor in (layer.bias.data, layer.running_mean):
        tensor.normal_()
    return layer


def conv(inputs, outputs, size, stride=1, **more):
    more = {"padding": size // 2, "bias": False} | more
    return nn.Conv2d(inputs, outputs, size, stride, **more)


def branches(net, x):
    """The sum of each pair of a layer and a norm, and of a norm of the input if one is left."""
    pairs = zip(net.layers[::2], net.layers[1::2], strict=False)
    total = sum(after(layer(x)) for layer, after in pairs)
    return (total + net.layers[-1](x) if len(net.layers) % 2 else total).relu()


def low_rank(net, x):
    wide, down, up = net.layers
    return wide(x) + up(down(x)) * 0.5


def in_a_row(net, x):
    for layer in net.layers:
        x = layer(x)
    return x


def stacked(net, x):
    return torch.stack([layer(x) for layer in net.layers]).sum(0)


def nested(net, x):
    """A branch of two layers with norms, beside others, and another tensor that is added."""
    one, two, three = net.layers
    return one(x) - two(three(x)) + x * 0.25


def beside(net, x, y):
    """Two layers of one input, with one of another input between them."""
    one, two, three = net.layers
    return one(x) + two(y) + three(x)


#: A network, its inputs and layers, and the operators that are left.
MERGED = {
    "training branches": (
        branches, [IMAGE], [conv(16, 16, 3), norm(16), conv(16, 16, 1), norm(16), norm(16)],
        ["conv2d", "relu"]),
    "strides": (
        branches, [IMAGE], [conv(16, 24, 3, 2), norm(24), conv(16, 24, 1, 2), norm(24)],
        ["conv2d", "relu"]),
    "depthwise": (
        branches, [IMAGE],
        [conv(16, 16, 3, groups=16), norm(16), conv(16, 16, 1, groups=16), norm(16), norm(16)],
        ["conv2d", "relu"]),
    "rows and columns": (
        lambda net, x: sum(layer(x) for layer in net.layers), [IMAGE],
        [nn.Conv2d(16, 8, 3, 1, 1), nn.Conv2d(16, 8, (1, 3), 1, (0, 1)),
         nn.Conv2d(16, 8, (3, 1), 1, (1, 0))], ["conv2d"]),
    "groups": (
        stacked, [IMAGE], [conv(16, 16, 3, groups=4), conv(16, 16, 3, groups=2, bias=True)],
        ["conv2d"]),
    "dilation": (
        stacked, [IMAGE], [conv(16, 8, 3, padding=2, dilation=2), conv(16, 8, 1)], ["conv2d"]),
    "a pooling": (
        lambda net, x: net.layers[0](x) + fn.avg_pool2d(x, 3, 1, 1), [IMAGE], [conv(16, 16, 3)],
        ["conv2d"]),
    "a series": (
        branches, [SERIES],
        [nn.Conv1d(16, 16, 5, padding="same"), norm(16, 1), nn.Conv1d(16, 16, 1), norm(16, 1),
         norm(16, 1)], ["conv1d", "relu"]),
    "zeros of their own": (
        lambda net, x: net.layers[0](fn.pad(x, (0, 1, 0, 1))) + net.layers[1](x), [IMAGE],
        [nn.Conv2d(16, 24, 2), nn.Conv2d(16, 24, 1)], ["constant_pad_nd", "conv2d"]),
    "linear layers": (
        stacked, [ROWS], [nn.Linear(32, 24), nn.Linear(32, 24, bias=False)], ["linear"]),
    "low rank": (
        low_rank, [ROWS], [nn.Linear(32, 48), nn.Linear(32, 4, False), nn.Linear(4, 48, False)],
        ["linear"]),
    "two in a row": (in_a_row, [ROWS], [nn.Linear(32, 64), nn.Linear(64, 8)], ["linear"]),
    "a wide one, then 3 x 3": (
        in_a_row, [IMAGE], [conv(16, 48, 1), nn.Conv2d(48, 8, 3, 2, 1)], ["conv2d"]),
    "3 x 3, then a wide one": (
        in_a_row, [IMAGE], [conv(16, 16, 3), norm(16), nn.Conv2d(16, 8, 1)], ["conv2d"]),
    "a row of three": (
        nested, [IMAGE], [conv(16, 16, 3), conv(32, 16, 3), conv(16, 32, 1)], ["conv2d"]),
    "another one between": (
        beside, [IMAGE, IMAGE], [conv(16, 8, 3), conv(16, 8, 3), conv(16, 8, 1)],
        ["conv2d", "conv2d", "add"]),
    "an identity": (
        lambda net, x: x + net.layers[0](x), [IMAGE], [conv(16, 16, 3)], ["conv2d"]),
}  # fmt: skip


def shared(net, x):
    y = net.layers[0](x)
    return y + net.layers[1](x), y.relu()


def twice(net, x, y):
    one, two = net.layers
    return one(x) + two(x) + one(y).sum()


#: What would be more work, read elsewhere, or not the same.
KEPT = {
    "a wide filter of each channel": (
        stacked, [IMAGE], [conv(16, 16, 7, groups=16), conv(16, 16, 1)]),
    "far apart": (
        stacked, [IMAGE], [conv(16, 16, 3), conv(16, 16, 3, padding=6, dilation=6)]),
    "a narrow product": (in_a_row, [ROWS], [nn.Linear(32, 4), nn.Linear(4, 64)]),
    "a bias at the border": (
        in_a_row, [IMAGE], [conv(16, 24, 1, bias=True), conv(24, 8, 3)]),
    "a border between two filters": (
        in_a_row, [IMAGE], [conv(16, 16, 3, groups=16), conv(16, 16, 3, groups=16)]),
    "a shared result": (shared, [IMAGE], [conv(16, 16, 3), conv(16, 16, 1)]),
    "a layer that is called twice": (twice, [IMAGE, IMAGE], [conv(16, 8, 3), conv(16, 8, 1)]),
    "a mean at the border": (
        lambda net, x: net.layers[0](x) + fn.avg_pool2d(x, 3, 1, 1, count_include_pad=False),
        [IMAGE], [conv(16, 16, 3)]),
    "reflection": (
        stacked, [IMAGE], [nn.Conv2d(16, 8, 3, 1, 1, padding_mode="reflect"), conv(16, 8, 1)]),
    "a function between": (
        lambda net, x: net.layers[1](net.layers[0](x).relu()), [ROWS],
        [nn.Linear(32, 64), nn.Linear(64, 8)]),
    "factors of each place": (
        lambda net, x: net.layers[0](x) * torch.linspace(0, 1, 13) + net.layers[1](x), [IMAGE],
        [conv(16, 8, 3), conv(16, 8, 1)]),
    "other images": (
        lambda net, x, y: net.layers[0](x) + net.layers[1](y), [IMAGE, IMAGE],
        [conv(16, 8, 3), conv(16, 8, 1)]),
}  # fmt: skip


def rewrite(function, shapes, layers, *, train=False, dynamic=None):
    """The operators of a network after the rewrite, and how often it applied."""
    torch.manual_seed(0)
    module, inputs = Net(function, *layers).train(train), [torch.randn(shape) for shape in shapes]
    exported = torch.export.export(module, tuple(inputs), dynamic_shapes=dynamic)
    expected = module.eval()(*inputs)
    exported = wb.rewrite(exported, "branches")
    if not train:
        torch.testing.assert_close(exported.module()(*inputs), expected, rtol=1e-4, atol=2e-5)
    calls = [node for node in exported.graph.nodes if node.op == "call_function"]
    return [str(node.target).split(".")[1] for node in calls], exported.changes["branches"]


@pytest.mark.parametrize("case", MERGED)
def test_branches_and_rows_become_one_layer(case):
    *network, left = MERGED[case]
    names, count = rewrite(*network)
    assert names == left
    assert count == 1


@pytest.mark.parametrize("case", KEPT)
def test_what_is_more_work_or_something_else_stays(case):
    assert rewrite(*KEPT[case])[1] == 0


def test_another_remedy_of_the_same_layers_is_offered_instead_if_it_is_less_work(tmp_path):
    """A pooling goes into the layer before it, which is better computed after the pooling."""
    module = Net(lambda net, x: fn.avg_pool2d(net.layers[0](x.relu()), 2), nn.Conv2d(32, 32, 1))
    rewrites = wb.export_model(module, torch.rand(1, 32, 64, 64), root=tmp_path).export.rewrites
    assert [rewrite.name for rewrite in rewrites] == ["order"]


def test_a_norm_in_training_stays():
    layers = [conv(16, 16, 3), nn.BatchNorm2d(16), conv(16, 16, 1), nn.BatchNorm2d(16)]
    assert rewrite(branches, [IMAGE], layers, train=True)[1] == 0


def test_sizes_that_are_open_stay():
    layers = [conv(16, 16, 3), conv(16, 16, 1)]
    dynamic = ((({2: torch.export.Dim("height", min=4, max=64)}),),)
    assert rewrite(stacked, [IMAGE], layers, dynamic=dynamic)[1] == 0


@pytest.mark.whole
def test_the_estimate_is_the_arithmetic_that_is_left(tmp_path):
    layers = [nn.Linear(64, 64, bias=False) for _ in range(4)]
    module, x = Net(stacked, *layers).eval(), torch.randn(1, 256, 64)
    rewrite, *_ = wb.export_model(module, x, root=tmp_path).export.rewrites
    assert 0.15 < rewrite.kept < 0.25
    assert rewrite.text == "one linear instead of 4 layers and their sum"
