"""XNNPACK's rewrites, one small graph each: what is exported, and which operators must run."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.analysis.layers import match_layers
from workbench.analysis.xnnpack.predicted_operators import (
    Operator,
    match_graph,
    match_names,
    predict_operators,
)
from workbench.records.layer_sidecar import Instruction, XNode, XValue

IMAGE = (1, 8, 8, 6)


class Exported:
    """A delegate under construction; every operator makes one value."""

    def __init__(self, shape=IMAGE, dtype="fp32"):
        self.values, self.nodes = [], []
        self.input = self.value(shape, dtype, "input")

    def value(self, shape, dtype="fp32", role="", zero_point=0):
        number = len(self.values)
        self.values.append(XValue(number, dtype, shape, 1, role, zero_point))
        return number

    def add(self, kind, *inputs, shape=None, dtype=None, clamp=None, role="", **attributes):
        like = self.values[inputs[0]]
        result = self.value(shape or like.shape, dtype or like.dtype, role)
        node = XNode(kind, inputs, (result,), attributes, 1, 1, len(self.nodes) + 1, clamp=clamp)
        self.nodes.append(node)
        return result

    def conv(self, source, kernel=3, stride=1, padding=1, groups=1, **others):
        weights = self.value((6, kernel, kernel, 6), self.values[source].dtype, "constant")
        sizes = {
            **dict.fromkeys(("kernel_height", "kernel_width"), kernel),
            **dict.fromkeys(("subsampling_height", "subsampling_width"), stride),
            **{f"padding_{side}": padding for side in ("top", "left", "bottom", "right")},
        }
        channels = {"group_input_channels": 6 // groups, "group_output_channels": 6 // groups}
        return self.add("Conv2d", source, weights, groups=groups, **channels, **sizes, **others)

    def ran(self, lacking=frozenset()):
        """Pattern and sources of what is predicted to run."""
        operators = predict_operators(self.values, self.nodes, lacking)
        return [(o.pattern.split(" \\(")[0].replace("\\", ""), list(o.sources)) for o in operators]


def test_a_1x1_convolution_is_a_matrix_product():
    net = Exported()
    net.conv(net.input, kernel=1, padding=0, role="output")
    assert net.ran() == [("(Dynamic )?Fully Connected", [0])]


@pytest.mark.parametrize("change", [{"kernel": 3}, {"stride": 2}, {"groups": 2}, {"padding": 1}])
def test_any_other_convolution_is_one(change):
    net = Exported()
    net.conv(net.input, **{"kernel": 1, "padding": 0, **change}, role="output")
    assert net.ran() == [("Convolution", [0])]


def test_a_clamp_after_a_convolution_is_part_of_it():
    net = Exported()
    net.add("Clamp", net.conv(net.input), clamp=(0.0, None), role="output")
    assert net.ran() == [("Convolution", [0, 1])]


def test_a_clamp_of_a_value_with_two_readers_is_not():
    net = Exported()
    between = net.conv(net.input)
    net.add("Clamp", between, clamp=(0.0, None), role="output")
    net.add("Sigmoid", between, role="output")
    assert [name for name, _ in net.ran()] == ["Convolution", "Clamp", "Sigmoid"]


def test_a_clamp_without_bounds_is_nothing():
    net = Exported()
    net.add("Sigmoid", net.add("Clamp", net.add("Abs", net.input)), role="output")
    assert net.ran() == [("Abs", [0]), ("Sigmoid", [2])]


def test_an_addition_with_an_activation_is_two_operators():
    net = Exported()
    net.add("Add", net.input, net.add("Abs", net.input), clamp=(0.0, None), role="output")
    assert net.ran() == [("Abs", [0]), ("Add", [1]), ("Clamp", [1])]


@pytest.mark.parametrize(("value", "fused"), [(0.0, True), (1.0, False)])
def test_padding_with_zeros_is_left_to_the_convolution(value, fused):
    net = Exported()
    edges = {"pre_paddings": [0, 1, 1, 0], "post_paddings": [0, 1, 1, 0], "padding_value": value}
    padded = net.add("StaticConstantPad", net.input, shape=(1, 10, 10, 6), **edges)
    net.conv(padded, padding=0, role="output")
    expected = [("Convolution", [0, 1])] if fused else [("Constant Pad", [0]), ("Convolution", [1])]
    assert net.ran() == expected


def test_a_product_with_itself_is_a_square():
    net = Exported()
    net.add("Multiply", net.input, net.input, role="output")
    assert net.ran() == [("Square", [0])]


def test_reshapes_in_a_row_are_one():
    net = Exported()
    flat = net.add("StaticReshape", net.input, shape=(1, 384), new_shape=[1, 384])
    net.add("StaticReshape", flat, shape=(6, 64), new_shape=[6, 64], role="output")
    assert net.ran() == [("(Static Reshape|Copy)", [0, 1])]


def test_a_matrix_product_reads_its_operand_transposed():
    net = Exported(shape=(1, 5, 7))
    turned = net.add("StaticTranspose", net.input, shape=(1, 7, 5), perm=[0, 2, 1])
    net.add("BatchMatrixMultiply", net.input, turned, shape=(1, 5, 5), role="output", flags=0)
    assert net.ran() == [("Batch Matrix Multiply", [0, 1])]


def test_a_matrix_product_quantises_its_own_rows():
    net = Exported(shape=(4, 16))
    weights = net.value((8, 16), "qcint8", "constant")
    rows = net.add("Convert", net.input, dtype="qdint8")
    net.add("FullyConnected", rows, weights, dtype="fp32", shape=(4, 8), role="output", flags=0)
    assert net.ran() == [("(Dynamic )?Fully Connected", [0, 1])]


def test_functions_from_8_bits_to_8_bits_are_one_table():
    net = Exported(dtype="qint8")
    wide = net.add("Convert", net.input, dtype="fp32")
    net.add("Convert", net.add("Hardswish", wide), dtype="qint8", role="output")
    assert net.ran() == [("Invalid Unary Op|Unary Elementwise|LUT", [0, 1, 2])]


def test_what_nobody_reads_does_not_run():
    net = Exported()
    net.add("Abs", net.input)
    net.add("Sigmoid", net.input, role="output")
    assert net.ran() == [("Sigmoid", [1])]


def test_a_cpu_without_half_precision_converts_around():
    net = Exported(dtype="fp16")
    net.add("Sigmoid", net.add("Exp", net.input), role="output")
    assert [name for name, _ in net.ran()] == ["Exp", "Sigmoid"]
    only = net.ran(frozenset({"unary:Exp"}))
    assert [name for name, _ in only] == ["Convert", "Exp", "Sigmoid", "Convert"]
    assert net.ran(frozenset({"*"})) == [
        ("Convert", []),
        ("Exp", [0]),
        ("Sigmoid", [1]),
        ("Convert", []),
    ]


def test_what_a_cpu_lacks_is_found_from_its_log():
    net = Exported(dtype="fp16")
    net.add("Sigmoid", net.add("Exp", net.add("Abs", net.input)), role="output")
    delegate = Instruction("delegate", xvalues=tuple(net.values), xnodes=tuple(net.nodes))
    names = ["Abs (NC)", "Convert (NC)", "Exp (NC)", "Sigmoid (NC)", "Convert (NC)"]
    fit = match_graph(delegate, names)
    assert fit.complete
    assert fit.lacking == {"unary:Exp"}
    assert not match_graph(delegate, ["Abs (NC)", "Sigmoid (NC)"]).complete


def operators_of(names):
    return [Operator(name, "", (n,), (), False) for n, name in enumerate(names)]


letters = st.lists(st.sampled_from("abc"), max_size=12)


@given(letters)
def test_equal_lists_pair_one_to_one(names):
    alignment = match_names(operators_of(names), names)
    assert alignment.cost == 0
    assert alignment.pairs == tuple(range(len(names)))


@given(letters, letters)
def test_pairs_are_in_order_and_of_one_kind(expected, names):
    alignment = match_names(operators_of(expected), names)
    pairs = [(p, name) for p, name in zip(alignment.pairs, names, strict=True) if p >= 0]
    assert all(expected[p] == name for p, name in pairs)
    assert np.all(np.diff([p for p, _ in pairs]) > 0)
    assert (alignment.cost == 0) == (expected == names)


@given(letters, st.integers(0, 12))
def test_a_foreign_name_leaves_the_others_where_they_are(names, place):
    logged = [*names[:place], "foreign", *names[place:]]
    pairs = match_names(operators_of(names), logged).pairs
    assert [p for p in pairs if p >= 0] == list(range(len(names)))


def test_one_of_several_alike_that_is_missing_leaves_doubt():
    alignment = match_names(operators_of("abbb"), list("abb"))
    assert alignment.pairs[0] == 0
    assert not alignment.alternatives[0]
    assert all(alignment.alternatives[1:])


layers = st.lists(
    st.tuples(
        st.sampled_from("abcdefgh"),
        st.sampled_from(["Conv2d", "ReLU"]),
        st.sampled_from(["", "1x2"]),
        st.sampled_from([1.0, 2.0, float("nan")]),
    ),
    unique_by=lambda layer: layer[0],
)


@given(layers, layers)
def test_every_layer_has_at_most_one_partner_of_its_class_and_order_is_kept(one, other):
    pairs = match_layers(one, other)
    assert len(set(pairs.values())) == len(pairs)
    kinds = {name: kind for name, kind, *_ in other}
    places = {name: place for place, (name, *_) in enumerate(other)}
    if {name for name, *_ in one} != set(places):
        partners = [places[pairs[name]] for name, *_ in one if name in pairs]
        assert partners == sorted(partners)
        assert all(kinds[pairs[name]] == kind for name, kind, *_ in one if name in pairs)
    assert set(match_layers(one, one)) == {name for name, *_ in one}
