"""Rows that are chosen or summed by indices: copies of whole rows, and a product that sums them."""

import pytest
import torch
from function_net import Net
from needed import needs

import workbench as wb

pytestmark = needs("remedies")

NODES, EDGES = 60, 900
PAIRS = torch.tril_indices(27, 27, -1)
GRAPH = torch.randint(0, NODES, (2, EDGES), generator=torch.Generator().manual_seed(0))


def rewrite(function, *inputs, remedy="matrices", **buffers):
    """The operators of a network that is rewritten, which computes the same."""
    module = Net(function, **buffers).eval()
    exported = wb.rewrite(torch.export.export(module, inputs), remedy)
    count = exported.changes[remedy]
    torch.testing.assert_close(exported.module()(*inputs), module(*inputs), rtol=1e-4, atol=1e-4)
    calls = [node for node in exported.graph.nodes if node.op == "call_function"]
    return count, {str(node.target).removeprefix("aten.").partition(".")[0] for node in calls}


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda net, x: x[:, net.pairs[0], net.pairs[1]], (64, 27, 27)),
        (lambda net, x: x[net.pairs[0], net.pairs[1]], (27, 27, 64)),
        (lambda net, x: x[:, net.pairs[0], net.pairs[1]], (8, 27, 27, 16)),
        (lambda net, x: x.flatten(1).index_select(1, net.pairs[0] * 27 + net.pairs[1]),
         (64, 27, 27)),
        (lambda net, x: x[:, net.shuffled], (64, 351)),
        (lambda net, x: x.flip(1)[:, net.shuffled], (1, 351, 64)),
    ],
)  # fmt: skip
def test_constant_places_are_copied_as_whole_rows(function, shape):
    shuffled = torch.randperm(351, generator=torch.Generator().manual_seed(0))
    count, names = rewrite(function, torch.randn(shape), pairs=PAIRS, shuffled=shuffled)
    assert count and "index_select" in names and "index" not in names


IMAGES, PLACES = (2, 3, 50, 16), (2, 3, 7)


def of_batches(net, x, places):
    """The first axes in full, the next one by an index for each of these."""
    one, other = torch.arange(2)[:, None, None], torch.arange(3)[:, None]
    return x[one, other, places]


def gathered(net, x, places):
    return x.gather(2, places[..., None].expand(-1, -1, -1, 16))


def gathered_by_repeats(net, x, places):
    return x.gather(-2, places.unsqueeze(-1).repeat(1, 1, 1, x.shape[-1]))


def gathered_for_all(net, x, places):
    """One index for all of the first axes."""
    return x.gather(2, places[:1, :1, :, None].expand(2, 3, 7, 16))


@pytest.mark.parametrize(
    "function",
    [
        of_batches, gathered, gathered_by_repeats, gathered_for_all,
        lambda net, x, places: torch.take_along_dim(x, places[..., None], 2),
        lambda net, x, places: net.table[places],
        lambda net, x, places: net.table[places - 50],  # from the end
        lambda net, x, places: x[0][:, places[0]],
        lambda net, x, places: x[:, torch.arange(3)[:, None], places[0]],
    ],
)  # fmt: skip
def test_rows_that_an_input_chooses_are_copied_whole(function):
    x, places = torch.randn(IMAGES), torch.randint(50, PLACES)
    count, names = rewrite(function, x, places, remedy="lookups", table=torch.randn(50, 16))
    assert count == 1 and "index_select" in names


def test_single_elements_are_not_copied_one_by_one():
    count, _ = rewrite(
        lambda net, x, places: x[0, :, :, 0][places[0] % 3, places[0]], torch.randn(IMAGES),
        torch.randint(50, PLACES), remedy="lookups",
    )  # fmt: skip
    assert not count


def test_one_index_of_one_axis_is_copied_whole_by_the_kernel():
    count, _ = rewrite(
        lambda net, x, places: x[:, places], torch.randn(4, 50, 16), torch.arange(7),
        remedy="lookups",
    )  # fmt: skip
    assert not count


def test_a_copy_of_whole_rows_is_not_replaced_again():
    places = torch.randperm(351)
    count, _ = rewrite(lambda net, x: x.index_select(0, net.p), torch.randn(351, 64), p=places)
    assert not count


def by_scatter(net, x, edges):
    places = edges[1].unsqueeze(-1).expand(-1, x.shape[1])
    return x.new_zeros(NODES, x.shape[1]).scatter_add_(0, places, x[edges[0]])


def with_weights(net, x, edges):
    rows = x.index_select(0, edges[0]) * net.weights[:, None]
    return torch.zeros(NODES, x.shape[1]).index_add(0, edges[1], rows)


SUMS = [
    lambda net, x, e: torch.zeros(NODES, x.shape[1]).index_add(0, e[1], x[e[0]]),
    lambda net, x, e: torch.zeros(NODES, x.shape[1]).index_put((e[1],), x[e[0]], accumulate=True),
    lambda net, x, e: (x * 0.5).index_add(0, e[1], x[e[0]]),
    lambda net, x, e: torch.zeros(2, NODES, 32).index_add(1, e[1], x.view(2, NODES, 32)[:, e[0]]),
    by_scatter, with_weights,
]  # fmt: skip


@pytest.mark.parametrize("function", SUMS)
@pytest.mark.parametrize("is_constant", [False, True])
def test_sums_of_rows_that_an_index_chose_are_a_product(function, is_constant):
    x, weights = torch.randn(NODES, 64), torch.rand(EDGES)
    if is_constant:
        given, buffers = (x,), {"edges": GRAPH, "weights": weights}
        count, names = rewrite(lambda net, x: function(net, x, net.edges), *given, **buffers)
        assert not names & {"scatter_add", "index", "zeros"}, "the export makes the matrix"
    else:
        count, names = rewrite(function, x, GRAPH, weights=weights)
    assert count and names & {"bmm", "matmul"} and not names & {"index_add", "index_put"}


def test_layers_of_one_graph_share_its_matrix():
    def layers(net, x, edges):
        for _ in range(2):
            x = torch.zeros(NODES, 64).index_add(0, edges[1], x[edges[0]]).tanh()
        return x

    exported = torch.export.export(Net(layers).eval(), (torch.randn(NODES, 64), GRAPH))
    exported = wb.rewrite(exported, "matrices")
    assert exported.changes["matrices"] == 2
    targets = [str(node.target) for node in exported.graph.nodes]
    assert targets.count("aten.scatter_add.default") == 1


def test_sums_of_other_rows_are_added_by_another_kernel():
    def pool(net, x, cells):
        return torch.zeros(NODES, 64).index_add(0, cells, x)

    count, names = rewrite(pool, torch.randn(EDGES, 64), GRAPH[1])
    assert count == 1 and "scatter_add" in names


@pytest.mark.parametrize(
    "function",
    [
        lambda net, x, e: torch.zeros(NODES, 64).index_put((e[1],), x[e[0]]),
        lambda net, x, e: torch.zeros(NODES, 64).index_put((e[1], e[0]), x[0, 0], accumulate=True),
        lambda net, x, e: torch.zeros(NODES, 64).scatter_add(0, e[:, :64], x[:2]),
    ],
)
def test_other_uses_of_indices_stay(function):
    count, _ = rewrite(function, torch.randn(NODES, 64), GRAPH[:, :NODES].clone())
    assert not count
