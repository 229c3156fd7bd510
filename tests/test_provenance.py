"""One operator that does the work of several exported ones: its name, shapes and cost."""

import math

import pytest

from workbench.analysis.attribution import Provenance
from workbench.analysis.xnnpack.operators import Operator
from workbench.records.layers import Instruction, Method, Origin, XNode, XValue

ORIGINS = (
    Origin("conv", "aten.convolution.default", "block.conv", "Conv2d", "net.py:7"),
    Origin("relu", "aten.relu.default", "block.act", "ReLU", "net.py:8"),
    Origin("norm", "aten.batch_norm.default", "block.norm", "BatchNorm2d", "net.py:7"),
    Origin("dq", "quantized_decomposed.dequantize.default", "other", "Linear", "net.py:9"),
)
VALUES = (
    XValue(0, "fp32", (1, 4, 4, 3), 192, "input"),
    XValue(1, "fp32", (8, 1, 1, 3), 96, "constant"),
    XValue(2, "fp32", (1, 4, 4, 8), 512),
    XValue(3, "fp32", (1, 4, 4, 8), 512, "output"),
    XValue(4, "fp32", (1, 8, 4, 4), 512, "output"),
)
NODES = (
    XNode("Conv2d", (0, 1), (2,), {}, 768, 800, 1, origins=(0,), absorbed=(2, 3)),
    XNode("Clamp", (2,), (3,), {}, 128, 1024, 2, origins=(1,)),
    XNode("StaticTranspose", (3,), (4,), {}, 0, 1024, 65535, role="layout", borrows=1),
)


@pytest.fixture
def provenance():
    delegate = Instruction("delegate", "XnnpackBackend", xvalues=VALUES, xnodes=NODES)
    return Provenance(Method("forward", (delegate,), {}, (), ORIGINS), delegate)


def of(provenance, sources, serves=()):
    return provenance.of_operator(Operator("", "", tuple(sources), tuple(serves), False))


@pytest.mark.parametrize("sources", [(0, 1), (1, 0)])
def test_the_layer_with_the_most_work_gives_the_name(provenance, sources):
    facts = of(provenance, sources)
    assert (facts["module"], facts["module_class"]) == ("block.conv", "Conv2d")
    assert facts["source"] == "net.py:7"
    assert sorted(facts["also"].split(", ")) == ["block.act", "block.norm"]
    assert facts["nodes"] == "conv, relu"


def test_what_passes_inside_is_neither_read_nor_written(provenance):
    facts = of(provenance, (0, 1))
    assert facts["shapes"] == "1x4x4x3 -> 1x4x4x8"
    assert (facts["flops"], facts["bytes"]) == (768 + 128, 192 + 96 + 512)


def test_a_change_of_layout_is_of_the_layer_that_it_borrows(provenance):
    facts = of(provenance, (2,))
    assert (facts["module"], facts["role"]) == ("block.act", "layout")
    assert facts["also"] == ""
    assert facts["nodes"] is None


def test_an_operator_put_in_for_others_costs_nobody_knows_what(provenance):
    facts = of(provenance, (), serves=(0,))
    assert (facts["module"], facts["role"], facts["shapes"]) == ("block.conv", "cast", None)
    assert math.isnan(facts["flops"])
    assert of(provenance, ())["module"] is None
