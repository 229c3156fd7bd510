"""Rows of several tables, which are put together, are rows of one table."""

import pytest
import torch
from function_net import Net
from torch import nn

import workbench as wb

SIZES = (30, 41, 52, 33)


def make(width=8, sizes=SIZES):
    return [nn.Embedding(size, width) for size in sizes]


def columns(net, ids):
    return torch.stack([table(ids[:, n]) for n, table in enumerate(net.layers)], 1)


def wide(net, ids):
    parts = zip(net.layers, ids.unbind(1), strict=True)
    return torch.cat([table(column) for table, column in parts], -1)


def narrow(net, ids):
    return torch.cat([table(ids[:, n : n + 1]) for n, table in enumerate(net.layers)], 1)


def turned(net, ids):
    """The last column belongs to the first table."""
    return torch.stack([table(ids[:, -1 - n]) for n, table in enumerate(net.layers)], 1)


def between(net, ids):
    """With other rows around."""
    rows = net.layers[0].weight[:5]
    others = [table(ids[:, n]) for n, table in enumerate(net.layers[1:])]
    return torch.stack([rows, *others, rows * 2], 1)


def apart(net, *ids):
    return torch.cat([table(each) for table, each in zip(net.layers, ids, strict=True)], -1)


IDS = torch.randint(0, 30, (5, 4))
ONE_TABLE = {
    "columns": (columns, make(), [IDS]), "wide": (wide, make(), [IDS]),
    "narrow": (narrow, make(), [IDS]), "turned": (turned, make(), [IDS]),
    "between": (between, make(), [IDS]),
    "apart": (apart, make(), [*(column.contiguous() for column in IDS.unbind(1))]),
}  # fmt: skip


def interrupted(net, ids):
    rows = [table(ids[:, n]) for n, table in enumerate(net.layers)]
    return torch.stack([*rows[:2], rows[0] * rows[1], *rows[2:]], 1)


def read_elsewhere(net, ids):
    rows = [table(ids[:, n]) for n, table in enumerate(net.layers)]
    return torch.stack(rows, 1), rows[0] + rows[1]


SEVERAL = {
    "other widths": (wide, [*make(sizes=SIZES[:2]), *make(4, SIZES[2:])], [IDS]),
    "one for all": (columns, make()[:1] * 4, [IDS]),
    "interrupted": (interrupted, make(), [IDS]),
    "rows that are read": (read_elsewhere, make(), [IDS]),
    "two": (columns, make()[:2], [IDS[:, :2].contiguous()]),
}  # fmt: skip


def run(module, inputs):
    result = module(*inputs)
    return result if isinstance(result, tuple) else (result,)


def rewrite(function, layers, inputs):
    module = Net(function, *layers).eval()
    exported = wb.rewrite(torch.export.export(module, (*inputs,)), "lookups")
    pairs = zip(run(exported.module(), inputs), run(module, inputs), strict=True)
    assert all(torch.equal(result, expected) for result, expected in pairs)
    return [str(node.target) for node in exported.graph.nodes], exported.changes["lookups"]


@pytest.mark.parametrize("case", ONE_TABLE)
def test_several_tables_become_one(case):
    targets, count = rewrite(*ONE_TABLE[case])
    assert count == 1
    assert targets.count("aten.embedding.default") == 1


@pytest.mark.parametrize("case", SEVERAL)
def test_tables_stay_whose_rows_are_not_one_block(case):
    assert rewrite(*SEVERAL[case])[1] == 0
