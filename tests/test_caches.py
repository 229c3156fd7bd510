"""Caches in buffers: what each call moves, and that ExecuTorch can write them in place."""

import numpy as np
import pytest
import torch
from needed import needs
from program_builder import Delegate, Kernel, Node, make_roof, measured
from torch import nn
from torch.nn import functional as fn

import workbench as wb
from workbench.plugin import list_plugins

SIZE, VALUE = 2**20, 2**12
SHAPES = {"c": (1, 4, 1024, 64), "d": (1, 4, 1024, 64), "v": (1, 4, 4, 64), "p": (4,)}
LAYER = Node("FullyConnected", "q W", "y", 4.0)


def decoder(*more, write="index_put", reads="c p v", **facts):
    """A layer that writes four positions of a cache, and copies the cache back."""
    return measured(
        Kernel("unsqueeze_copy", "q", "p", 0.25), Kernel(write, reads, "d", 1.5),
        Kernel("expand_copy", "d", "k", 1.0), *more, Delegate([LAYER]),
        Kernel("mean", "y", "z", 0.25), Kernel("copy_", "d", "c", 0.5),
        shapes=SHAPES, **facts,
    )  # fmt: skip


def find_cache(measurement):
    return [each for each in measurement.opportunities if each.rule == "KV cache"]


@needs("llm")
def test_a_cache_is_priced_by_what_each_call_moves():
    m = decoder(roof=make_roof())
    (row,) = m.caches.itertuples()
    assert (row.size_bytes, row.written_bytes) == (SIZE, VALUE)
    assert row.moved_bytes == 2 * VALUE + 4 * SIZE, "copied, and copied back"
    assert row.write_ms == pytest.approx(1.75, rel=0.01), "with what computes the places"
    assert row.copy_ms == pytest.approx(0.5, rel=0.01)
    assert row.read_ms == pytest.approx(1.0, rel=0.01)
    assert row.gbps == pytest.approx(row.moved_bytes / 2.25e6, rel=0.01)
    assert row.roof_gbps == pytest.approx(100.0, rel=0.01)
    assert np.isnan(decoder().caches["roof_gbps"]).all(), "without peaks"


def test_only_what_writes_and_copies_a_cache_is_claimed():
    """Means of norms are beside it, and repeats for heads read it: they have other remedies."""
    (finding,) = find_cache(decoder())
    kernels = {key.split("/")[1] for key in finding.operators} - {"OPERATOR_CALL"}
    assert kernels == {
        "native_call_unsqueeze_copy.out", "native_call_index_put.out", "native_call_copy_.out",
    }  # fmt: skip
    assert finding.remedy == "in_place"
    assert finding.gain.ms == pytest.approx(2.25 * (1 - VALUE / SIZE), rel=0.01)
    assert "run_reinplace_pass=True" in finding.code


def test_places_along_two_dimensions_are_written_by_the_application():
    (finding,) = find_cache(decoder(reads="c p r v"))
    assert (finding.remedy, finding.rewrite) == ("", None)


@pytest.mark.parametrize("kind", ["add", "all", "in place", "input"])
def test_other_buffers_are_no_caches_that_are_copied(kind):
    programs = {
        "add": lambda: decoder(write="add", reads="c v"),
        "all": lambda: decoder(reads="v p"),
        "input": lambda: measured(
            Kernel("index_put", "c p v", "d", 1.0), Delegate([LAYER]), shapes=SHAPES
        ),
        "in place": lambda: measured(
            Kernel("index_put_", "p v", "c", 0.1), Kernel("expand_copy", "c", "k", 1.0),
            Delegate([LAYER]), shapes=SHAPES,
        ),
    }  # fmt: skip
    m = programs[kind]()
    assert not find_cache(m)
    if "llm" in list_plugins():
        assert m.caches["moved_bytes"].tolist() == ([2 * VALUE] if kind == "in place" else [])


class Attention(nn.Module):
    """Attention over a cache of 64 positions, which it writes at one."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))
        self.register_buffer("keys", torch.zeros(1, 4, 64, 16))
        self.register_buffer("values", torch.zeros(1, 4, 64, 16))

    def forward(self, x, position):
        q, k, v = (layer(x).view(1, 1, 4, 16).transpose(1, 2) for layer in self.layers)
        self.keys[:, :, position] = k
        self.values[:, :, position] = v
        mask = (torch.arange(64) <= position).float()
        scores = (q @ self.keys.transpose(-2, -1)).softmax(-1) * mask
        return (scores @ self.values).flatten(1) + fn.relu(x[:, 0])


@pytest.mark.whole
def test_a_cache_that_is_written_in_place_keeps_what_was_written(tmp_path):
    torch.manual_seed(0)
    net, calls = Attention().eval(), [(torch.randn(1, 1, 64), torch.tensor([n])) for n in (0, 1, 5)]
    inputs = (torch.randn(1, 1, 64), torch.tensor([3]))
    programs = [
        wb.export_model(net, inputs, options=wb.ExportOptions(rewrite=rewrite), root=tmp_path)
        for rewrite in ((), ("in_place",))
    ]
    kernels = [
        [call.name for call in each.layers.methods[0].instructions if "index_put" in call.name]
        for each in programs
    ]
    assert kernels == [["aten::index_put.out"] * 2, ["aten::index_put_"] * 2]
    assert programs[1].export.rewrite == ("in_place",)

    from executorch.runtime import Runtime

    method = Runtime.get().load_program(programs[1].path).load_method("forward")
    with torch.no_grad():
        for call in calls:
            torch.testing.assert_close(method.execute(call)[0], net(*call), atol=1e-5, rtol=1e-4)
