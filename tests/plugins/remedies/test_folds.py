"""Linear maps around layers become a part of their weights, if that is no more work."""

import pytest
import torch
from function_net import Net
from torch import nn
from torch.nn import functional as fn

import workbench as wb
from workbench.plugins.remedies.equivalence import Equivalent, Finder
from workbench.plugins.remedies.linear import find_matrices
from workbench.plugins.remedies.moves import arrange, number
from workbench.plugins.remedies.rewrite import REWRITER

IMAGE, ROWS = (1, 16, 6, 9), (1, 9, 32)
TABLE = torch.randperm(16, generator=torch.Generator().manual_seed(0))


def shuffle(x):
    """Channels of four groups, in turns."""
    return x.view(1, 4, 4, 6, 9).transpose(1, 2).reshape(1, 16, 6, 9)


def pairs(net, x, z):
    """Products of all pairs of rows, of which each is read once, beside other features."""
    products = (z @ z.transpose(1, 2))[:, net.i, net.j]
    return net.layers[0](torch.cat([x, products], 1))


PAIRS = dict(zip("ij", torch.tril_indices(9, 9, -1), strict=True))
#: A network, its inputs, layers and buffers; operators that are left.
FOLDED = {
    "a selection before": (
        lambda net, x: net.layers[0](x.relu()[:, TABLE]), [IMAGE], [nn.Conv2d(16, 8, 1)], {},
        ["relu", "conv2d"],
    ),
    "a selection after": (
        lambda net, x: net.layers[0](x)[:, TABLE].relu(), [IMAGE],
        [nn.Conv2d(16, 16, 3, padding=1)], {}, ["conv2d", "relu"],
    ),
    "channels that are dropped": (
        lambda net, x: net.layers[0](x)[:, :4].relu(), [IMAGE], [nn.Conv2d(16, 8, 3)], {},
        ["conv2d", "relu"],
    ),
    "channels that are dropped later": (
        lambda net, x: (net.layers[0](x).relu() * 2).narrow(-1, 3, 4), [ROWS], [nn.Linear(32, 8)],
        {}, ["linear", "relu", "mul"],
    ),
    "what is bounded and moved": (
        lambda net, x: net.layers[0](x.clamp(-1e8, 1e8)[:, TABLE]), [IMAGE],
        [nn.Conv2d(16, 8, 1)], {}, ["clamp", "conv2d"],
    ),
    "a shuffle": (
        lambda net, x: net.layers[0](shuffle(x)), [IMAGE], [nn.Conv2d(16, 8, 3, padding=1)], {},
        ["conv2d"],
    ),
    "rows in turns": (
        lambda net, x: net.layers[0](torch.cat((x[..., 1::2], x[..., ::2]), -1)), [ROWS],
        [nn.Linear(32, 8)], {}, ["linear"],
    ),
    "a mean that is taken off": (
        lambda net, x: net.layers[0](x - x.mean(-1, keepdim=True)), [ROWS], [nn.Linear(32, 8)], {},
        ["linear"],
    ),
    "a sum with an offset": (
        lambda net, x: net.layers[0](x.cumsum(-1) + net.bias), [ROWS], [nn.Linear(32, 8)],
        {"bias": torch.randn(32)}, ["linear"],
    ),
    "two products": (
        lambda net, x: net.layers[1](net.layers[0](x)), [ROWS],
        [nn.Linear(32, 64), nn.Linear(64, 8)], {}, ["linear"],
    ),
    "an image that is turned": (
        lambda net, x: net.layers[0](x.flip(2).flatten(1)), [IMAGE], [nn.Linear(864, 4)], {},
        ["reshape", "linear"],
    ),
    "constant indices": (
        pairs, [(8, 16), (8, 9, 16)], [nn.Linear(52, 256)], PAIRS,
        ["transpose", "matmul", "reshape", "cat", "linear"],
    ),
}  # fmt: skip
#: What would be more work, read something else, or not be the same.
KEPT = {
    "a narrow product": (
        lambda net, x: net.layers[1](net.layers[0](x)), [ROWS],
        [nn.Linear(32, 4), nn.Linear(4, 64)], {},
    ),
    "groups": (
        lambda net, x: net.layers[0](x[:, TABLE]), [IMAGE], [nn.Conv2d(16, 8, 1, groups=2)], {},
    ),
    "copies of channels": (
        lambda net, x: net.layers[0](x)[:, torch.arange(512) % 8], [(1, 16, 26, 28)],
        [nn.Conv2d(16, 8, 3)], {},
    ),
    "a pooling alone": (lambda net, x: fn.avg_pool2d(x, 3, 1, 1).relu(), [IMAGE], [], {}),
    "positions": (lambda net, x: net.layers[0](x.flip(1)), [ROWS], [nn.Linear(32, 8)], {}),
    "another reader": (
        lambda net, x: (lambda y: net.layers[0](y) + y.sum())(x.flip(-1)), [ROWS],
        [nn.Linear(32, 8)], {},
    ),
    "a bias at the border": (
        lambda net, x: net.layers[1](net.layers[0](x)), [IMAGE],
        [nn.Conv2d(16, 24, 1), nn.Conv2d(24, 8, 3, padding=1)], {},
    ),
    "a function of all channels": (
        lambda net, x: net.layers[0](x).softmax(-1)[..., :4], [ROWS], [nn.Linear(32, 8)], {},
    ),
    "halves that are read": (
        lambda net, x: (lambda y: y[..., :4] * y[..., 4:].exp())(net.layers[0](x)), [ROWS],
        [nn.Linear(32, 8)], {},
    ),
    "a function": (lambda net, x: net.layers[0](x.abs()), [ROWS], [nn.Linear(32, 8)], {}),
    "a bound before a product": (
        lambda net, x: net.layers[0]((x * 2.0).clamp(min=-1e5)), [ROWS], [nn.Linear(32, 8)], {},
    ),
    "a factor of a function": (
        lambda net, x: net.layers[0](x * torch.clamp(x + 3, 0, 6) / 6), [IMAGE],
        [nn.Conv2d(16, 8, 1)], {},
    ),
}  # fmt: skip


def rewrite(case, name):
    """The operators of a network after a rewrite, how often it applied, and how far it is off."""
    function, shapes, layers, buffers, *_ = case
    torch.manual_seed(0)
    module, inputs = Net(function, *layers, **buffers).eval(), [torch.randn(s) for s in shapes]
    exported = torch.export.export(module, tuple(inputs))
    count = REWRITER.apply(exported, [name], "xnnpack")[name]
    torch.testing.assert_close(exported.module()(*inputs), module(*inputs), rtol=1e-4, atol=1e-5)
    calls = [node for node in exported.graph.nodes if node.op == "call_function"]
    return [str(node.target).split(".")[1] for node in calls], count


@pytest.mark.parametrize("case", FOLDED)
def test_a_linear_map_goes_into_a_layer(case):
    assert rewrite(FOLDED[case], "affine") == (FOLDED[case][4], 1)


@pytest.mark.parametrize("case", KEPT)
def test_a_map_stays_that_would_be_more_work_or_something_else(case):
    assert rewrite(KEPT[case], "affine")[1] == 0


def test_a_bound_that_no_sample_reaches_stays_after_a_layer():
    case = (
        lambda net, x: net.layers[0](x).clamp(-1e5, 1e5)[:, TABLE], [IMAGE],
        [nn.Conv2d(16, 16, 3)], {},
    )  # fmt: skip
    assert rewrite(case, "affine") == (["conv2d", "clamp"], 1)


def offer(function, x, layers):
    """The remedies that are offered for a network of which nothing is delegated."""
    exported = torch.export.export(Net(function, *layers).eval(), (x,))
    names = {node.name: [node.name] for node in exported.graph.nodes}
    return {each.name: each for each in REWRITER.offer(exported, "xnnpack", names, names)}


def test_a_text_names_what_a_layer_takes_up():
    offers = offer(
        lambda net, x: fn.pad(net.layers[0](x), (1, 1, 1, 1)), torch.randn(IMAGE),
        [nn.Conv2d(16, 8, 1, bias=False)],
    )  # fmt: skip
    assert offers["affine"].text == "conv2d with the pad after it in one layer"


def test_two_ways_to_build_a_part_are_proved_each():
    exported = torch.export.export(Net(lambda net, x: x.exp()).eval(), (torch.randn(4, 8),))
    finder = Finder(exported)
    (node,) = (node for node in finder.nodes if "exp" in str(node.target))
    source = node.all_input_nodes[0]
    wrong, right = (
        Equivalent("functions", "", (node,), node, (source,), build)
        for build in (torch.tanh, torch.exp)
    )
    assert [bool(finder.prove(each)) for each in (wrong, right, wrong)] == [False, True, False]


def test_constant_indices_before_a_function_are_one_product():
    case = (lambda net, z: z[:, net.i, net.j].relu(), [(8, 9, 9)], [], PAIRS)
    assert rewrite(case, "matrices") == (["reshape", "linear", "relu"], 1)


def resize(x, mode="nearest", factor=2):
    return fn.interpolate(x, scale_factor=factor, mode=mode)


#: What is done to an image before a convolution, the convolution, and how much is left to do.
RESIZED = {
    "zeros": (lambda x: resize(x), nn.Conv2d(16, 16, 3, padding=1), True),
    "no border": (lambda x: resize(x), nn.Conv2d(16, 16, 3), True),
    "reflection": (
        lambda x: fn.pad(resize(x), (1, 1, 1, 1), mode="reflect"), nn.Conv2d(16, 16, 3), True),
    "five": (lambda x: resize(x), nn.Conv2d(16, 8, 5, padding=2), True),
    "thrice": (lambda x: resize(x, factor=3), nn.Conv2d(16, 8, 3, padding=1), True),
    "repeats": (
        lambda x: x.repeat_interleave(2, 2).repeat_interleave(2, 3),
        nn.Conv2d(16, 16, 3, padding=1, groups=2), True),
    "one channel of each group": (lambda x: resize(x), nn.Conv2d(16, 16, 3, 1, 1, 1, 16), False),
    "a stride": (lambda x: resize(x), nn.Conv2d(16, 16, 3, 2, 1), False),
    "a wide reflection": (
        lambda x: fn.pad(resize(x), (4, 4, 4, 4), mode="reflect"), nn.Conv2d(16, 16, 9), False),
    "between elements": (lambda x: resize(x, "bilinear"), nn.Conv2d(16, 16, 3, 1, 1), False),
}  # fmt: skip


@pytest.mark.parametrize("case", RESIZED)
def test_a_filter_of_repeated_elements_is_a_smaller_one_before(case):
    before, layer, shrinks = RESIZED[case]
    network = (lambda net, x: net.layers[0](before(x)), [IMAGE], [layer], {})
    names, count = rewrite(network, "order")
    assert count == shrinks
    assert ("pixel_shuffle" in names) == shrinks
    assert not shrinks or not any("upsample" in name or "repeat" in name for name in names)


LARGE, FLAT = (1, 8, 12, 18), (1, 18, 32)


def joined(*modes):
    """A layer of two tensors, one of which is resized, and functions after that."""

    def run(net, x, y):
        layer, *after = net.layers
        x = resize(x, modes[0])
        for function in modes[1:]:
            x = function(x)
        x = layer(torch.cat((x, y), 1))
        for each in after:
            x = each(x)
        return x

    return run


def norm(channels):
    """A batch norm that has seen images."""
    layer = nn.BatchNorm2d(channels)
    layer(torch.randn(8, channels, 4, 4) * 3 + 1)
    return layer


#: What a layer reads is concatenated, and some of it resized; operators that are left.
JOINED = {
    "between elements": (
        joined("bilinear"), [IMAGE, LARGE], [nn.Conv2d(24, 8, 1)], {},
        ["conv2d", "conv2d", "upsample_bilinear2d", "add"],
    ),
    "repeated, with a function": (
        joined("nearest", torch.relu), [IMAGE, LARGE], [nn.Conv2d(24, 8, 1)], {},
        ["conv2d", "relu", "conv2d", "upsample_nearest2d", "add"],
    ),
    "a batch norm": (
        joined("bilinear"), [IMAGE, LARGE], [nn.Conv2d(24, 8, 1, bias=False), norm(8), nn.ReLU()],
        {}, ["conv2d", "conv2d", "upsample_bilinear2d", "add", "relu"],
    ),
    "a filter": (
        joined("nearest"), [IMAGE, LARGE], [nn.Conv2d(24, 8, 3, padding=1)], {},
        ["conv2d", "conv2d", "pixel_shuffle", "slice", "slice", "add"],
    ),
    "four sizes": (
        lambda net, *xs: net.layers[0](torch.cat(
            [fn.interpolate(x, size=(12, 18), mode="bilinear") for x in xs], -3)),
        [(1, 32, 3, 5), (1, 32, 6, 9), LARGE, LARGE], [nn.Conv2d(80, 8, 1)], {},
        ["upsample_bilinear2d", "upsample_bilinear2d", "cat", "conv2d",
         *["conv2d", "upsample_bilinear2d", "add"] * 2],
    ),
    "rows": (
        lambda net, x, y: net.layers[0](torch.cat((x.repeat_interleave(2, 1), y), -1)),
        [ROWS, FLAT], [nn.Linear(64, 32)], {}, None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", JOINED)
def test_a_layer_of_parts_reads_each_before_it_is_resized(case):
    names, count = rewrite(JOINED[case], "order")
    assert count == 1
    assert not JOINED[case][4] or names == JOINED[case][4]


#: What is more work, or another function.
APART = {
    "a function between elements": (
        joined("bilinear", torch.relu), [IMAGE, LARGE], [nn.Conv2d(24, 8, 1)], {}),
    "a bound that no sample reaches": (
        joined("bilinear", lambda x: x.clamp(-1e5, 1e5).flip(3)), [IMAGE, LARGE],
        [nn.Conv2d(24, 8, 1)], {}),
    "a filter between elements": (
        joined("bilinear"), [IMAGE, LARGE], [nn.Conv2d(24, 8, 3, padding=1)], {}),
    "many results": (joined("nearest"), [(1, 4, 6, 9), LARGE], [nn.Conv2d(12, 64, 1)], {}),
    "few that are resized": (
        joined("nearest"), [(1, 4, 6, 9), (1, 64, 12, 18)], [nn.Conv2d(68, 8, 1)], {}),
    "another axis": (
        lambda net, x, y: net.layers[0](torch.cat((resize(x), y), 2)), [IMAGE, (1, 16, 4, 18)],
        [nn.Conv2d(16, 8, 1)], {}),
    "a second reader": (
        lambda net, x, y: (lambda z: net.layers[0](torch.cat((z, y), 1)) + z[:, :8])(resize(x)),
        [IMAGE, LARGE], [nn.Conv2d(24, 8, 1)], {}),
}  # fmt: skip


@pytest.mark.parametrize("case", APART)
def test_a_layer_stays_after_a_resizing_that_it_does_not_commute_with(case):
    assert rewrite(APART[case], "order")[1] == 0


class Head(nn.Module):
    """The end of a network that segments: projections of several sizes, resized and mixed."""

    def __init__(self, width=64):
        super().__init__()
        self.rows = nn.ModuleList(nn.Linear(16, width) for _ in range(3))
        self.mix, self.norm = nn.Conv2d(3 * width, width, 1, bias=False), norm(width)

    def forward(self, *images):
        parts = []
        for rows, image in zip(self.rows, images, strict=True):
            part = rows(image.flatten(2).transpose(1, 2)).transpose(1, 2)
            part = part.unflatten(2, image.shape[2:])
            parts.append(fn.interpolate(part, size=images[0].shape[2:], mode="bilinear"))
        return self.norm(self.mix(torch.cat(parts, 1))).relu()


def test_projections_before_a_resizing_take_the_layer_after_it_into_their_weights():
    module, images = Head().eval(), tuple(torch.randn(1, 16, 24 // n, 16 // n) for n in (1, 2, 4))
    exported = torch.export.export(module, images)
    assert REWRITER.apply(exported, ["order"], "xnnpack")["order"] == 1
    torch.testing.assert_close(exported.module()(*images), module(*images), rtol=1e-4, atol=1e-5)
    names = [str(node.target) for node in exported.graph.nodes if node.op == "call_function"]
    assert "aten.conv2d.default" not in names and names.count("aten.linear.default") == 3
    assert names.count("aten.upsample_bilinear2d.vec") == 2, "the first one has its size already"


@pytest.mark.cases
def test_layers_of_resized_images_are_tried_before_resizing(tmp_path):
    images = tuple(torch.randn(1, 16, 64 // n, 64 // n) for n in (1, 2, 4))
    brief = wb.MeasureOptions(toggle="none", processes=3, evidence=False, cold_start=False)
    module = Head().eval()
    program = wb.export_model(module, images, root=tmp_path)
    run = wb.measure(program, options=brief, root=tmp_path)
    trials = wb.check_findings(run, module, images)
    (trial,) = (each for each in trials if each.remedy == "order")
    assert trial.answer == "gains", trial.problem
    assert trial.sqnr_db > 100 and trial.gain_ms > trial.before_ms / 4


@pytest.mark.cases
def test_a_batch_norm_that_no_layer_takes_up_is_quantised_as_a_convolution(tmp_path):
    """Concatenations are in int8; norms after them, before a function, are not by themselves."""

    def run(net, x):
        stem, after, last = net.layers
        return last(after(torch.cat((x, stem(x)), 1)).relu())

    module = Net(run, nn.Conv2d(8, 8, 3, padding=1), norm(16), nn.Conv2d(16, 4, 3)).eval()
    image = torch.randn(1, 8, 24, 24)
    options = [wb.ExportOptions(dtype="int8", rewrite=names) for names in ((), ("convolutions",))]
    plain, better = (wb.export_model(module, image, each, root=tmp_path).export for each in options)
    assert "convolutions" in {each.name for each in plain.rewrites}
    assert better.rewrite == ("convolutions",)
    assert better.sqnr_db > plain.sqnr_db - 0.1, "a weight of each channel is rounded to itself"
    single = wb.export_model(module, image, root=tmp_path).export
    assert "convolutions" not in {each.name for each in single.rewrites}


#: An index map as a function of numbers, and how many tensors are read to make it.
MOVED = {
    "nothing": (lambda x: x, 1),
    "a step": (lambda x: x[:, 2::3], 1),
    "a row": (lambda x: x[:, 3], 1),
    "windows": (lambda x: x.unfold(1, 10, 4), 3),
    "parts in front": (lambda x: torch.cat(x.split(8, -1), 1), 1),
    "turned": (lambda x: x.roll((3, 1), (1, 2)), 2),
    "repeated": (lambda x: x.repeat_interleave(2, 1), 1),
    "in turns": (lambda x: torch.stack((x[..., 1::2], x[..., ::2]), -1).flatten(-2), 2),
    "mirrored": (lambda x: x.flip(1), 0),
    "scattered": (lambda x: x[:, torch.randperm(24, generator=torch.Generator())], 0),
}


@pytest.mark.parametrize("case", MOVED)
def test_an_index_map_is_made_of_few_pieces(case):
    function, pieces = MOVED[case]
    (numbers,) = number([(1, 24, 32)])
    move = arrange(function(numbers), [numbers.shape])
    assert (move.pieces if move else 0) == pieces
    assert not move or torch.equal(move.build({0: numbers}), function(numbers))


def test_an_empty_part_stays():
    x = torch.randn(4, 8)
    exported = torch.export.export(Net(lambda net, x: torch.cat((x[:, :0], x), 1)).eval(), (x,))
    REWRITER.apply(exported, ["slices"], "xnnpack")
    assert torch.equal(exported.module()(x), x)


def test_windows_of_an_image_are_no_matrix_that_fits_into_no_memory():
    module, x = Net(lambda net, x: fn.unfold(x, 3, padding=1)).eval(), torch.randn(1, 32, 64, 64)
    finder = Finder(torch.export.export(module, (x,)))
    (node,) = (node for node in finder.nodes if "im2col" in str(node.target))
    with torch.no_grad():
        assert find_matrices(finder, node) is None


class Counting(nn.Module):
    """A table that stays, a counter that is written, and random numbers."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.rand(4))
        self.register_buffer("count", torch.zeros(4))

    def forward(self, x):
        fixed, counted, noise = self.table.exp(), self.count * 2, torch.rand(4).sin()
        self.count.add_(1)
        return x * fixed + counted + noise


def test_a_buffer_that_is_written_and_random_numbers_are_no_constants():
    finder = Finder(torch.export.export(Counting(), (torch.rand(4),)))
    computed = {node.name for node in finder.fixed if node.op == "call_function"}
    assert computed == {"exp"}
    assert {node.name for node in finder.constants} == {"b_table", "exp"}
