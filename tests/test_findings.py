"""Each rule finds what it is for, and is silent where there is nothing to be found."""

import fnmatch
import functools
import math
import re
import shlex
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from changed_runs import with_record
from command_line import COMMANDS
from findings_table import tabulate
from made_models import exported
from needed import needs
from program_builder import (
    Delegate,
    Kernel,
    Node,
    changed,
    layout,
    left,
    measured,
    transpose,
)
from recorded import recorded

import workbench as wb
from workbench.analysis.findings.complete import complete_command
from workbench.analysis.findings.finding import REST, Finding, Gain, apply_trials, rank_findings
from workbench.analysis.findings.text import NONE, describe_cause, describe_gain
from workbench.jobs import parse_name
from workbench.plots.views import list_sections
from workbench.records.exports import Rewrite
from workbench.records.trials import Trial

TO_NHWC, TO_NCHW = (0, 2, 3, 1), (0, 3, 1, 2)


def conv(reads, writes, ms, **others):
    return Node("Conv2d", f"{reads} W", writes, ms, flops=10**7, **others)


#: A network about which there is nothing to say.
PLAIN = Delegate([conv("x", "a", 3.0), conv("a", "b", 2.0)])


def found(facts, rule):
    table = tabulate(facts)
    return table[table["rule"] == rule].reset_index(drop=True)


def only(facts, rule):
    table = found(facts, rule)
    assert len(table) == 1, table
    return table.iloc[0]


def small_head():
    layers = [
        Node("FullyConnected", "e V", "h", 10.0, module="layers.0", flops=10**6),
        Node("FullyConnected", "h W", "y", 2.0, module="head", flops=10**6),
    ]
    shapes = {"TABLE": (512, 64), "e": (1, 1, 64), "h": (1, 1, 64), "W": (512, 64)}
    shapes |= {"V": (64, 64), "y": (1, 1, 512)}
    return measured(Kernel("embedding", "TABLE x", "e", 0.1), Delegate(layers), shapes=shapes)


def cached_attention():
    place, inner = {"module": "layers.0.attention"}, {"module": "layers.0.attention.SDPA"}
    products = [Node("BatchMatrixMultiply", "x k", "s", 1.0, **inner),
                Node("FullyConnected", "s W", "o", 5.0, **place)]  # fmt: skip
    return measured(
        Kernel("index_put", "c p v", "d", 2.0, **place),
        Kernel("expand_copy", "d", "k", 1.0, **inner),
        Delegate(products),
        Kernel("copy_", "d", "c", 0.5, module=""),
        Kernel("sort", "o", "y", 0.001, module="layers.1.other"),
        shapes={"v": (1, 64, 1, 32), "p": (1,)},
    )


def sorted_between(count):
    """So many delegates with a kernel between each two."""
    program = [Delegate([conv("x", "a0", 0.5)], overhead_ms=0.2)]
    for n in range(1, count):
        program.append(Kernel("sort", f"a{n - 1}", f"s{n}", 0.02))
        program.append(Delegate([conv(f"s{n}", f"a{n}", 0.5)], overhead_ms=0.2))
    return measured(*program)


def turned_back(count):
    """Transposes around sigmoids, which undo one another."""
    nodes = [
        node
        for n in range(count)
        for node in (transpose(f"a{n}", f"b{n}", TO_NHWC, 0.5),
                     Node("Sigmoid", f"b{n}", f"c{n}", 0.1),
                     transpose(f"c{n}", f"a{n + 1}", TO_NCHW, 0.5))
    ]  # fmt: skip
    return measured(Delegate([conv("x", "a0", 2.0), *nodes, conv(f"a{count}", "y", 2.0)]))


def tiny_kernels():
    names = ["x", *(f"t{n}" for n in range(40))]
    program = [
        Kernel(f"op{n}", one, other, 0.002, call_ms=0.01)
        for n, (one, other) in enumerate(pairwise(names))
    ]
    return measured(*program, Delegate([conv("t39", "y", 1.0)]))


def squeezed(**shapes):
    """Squeeze-excite: channels-last inputs make 11 delegates of mobilenet_v3_small's one."""
    program = [layout("x", "a", TO_NHWC, 0.5), conv("a", "b", 2.0), conv("b", "s", 1.0)]
    return measured(Delegate([*program, Node("Multiply", "b s", "y", 1.0)]), shapes=shapes)


def refused(kernel, reason):
    program = (Kernel(kernel, "x", "y", 3.0), Delegate([conv("y", "z", 3.0)]))
    program = broken_by_gelu() if kernel == "gelu" else program
    return measured(*program, export=exported(partition=[left(kernel, reason)]))


def gated(dtype="fp32", *more):
    gate = Node("FullyConnected", "x W", "a", 3.0, module="lstm", module_class="LSTM")
    return measured(Delegate([gate, *more]), export=exported(dtype))


def spelled_out(*rewrites):
    nodes = [
        Node(kind, "a HALF", f"b{n}", 0.5) for n, kind in enumerate(("Add", "Clamp", "Divide"))
    ]
    return measured(Delegate([conv("x", "a", 1.0), *nodes]), export=exported(rewrites=rewrites))


def cast_norm():
    return (
        Kernel("_to_dim_order_copy", "x", "a", 2.0),
        Kernel("native_layer_norm", "a", "b", 2.0),
        Kernel("_to_dim_order_copy", "b", "c", 2.0),
        Delegate([conv("c", "d", 2.0)]),
    )


def gelu_between(dtype):
    nodes = [conv("x", "a", 2.0), layout("a", "b", TO_NCHW, 0.5), Node("Tanh", "b", "c", 0.1),
             layout("c", "d", TO_NHWC, 0.5), conv("d", "y", 2.0)]  # fmt: skip
    return measured(Delegate(nodes), export=exported(dtype))


def padded(rows):
    return conv("b", "c", 2.0, attributes={"padding_top": rows, "kernel_height": 1})


GUARD = Rewrite(
    "attention", "attention without its guard", ("eq", "logical_not", "any", "where"), 1.0, 130.0, 5
)
GELU = Rewrite("gelu_tanh", "GELU by its tanh approximation", ("gelu",), 1.0, None, 9)
EQUAL = Rewrite("functions", "hard swish instead of 4 operators", ("Add", "Clamp"), 0.25, 140)
PRODUCT = Rewrite("products", "one batch", ("expand_copy", "BatchMatrixMultiply"), 1.0, 200.0, 1)
#: What a rule finds in a program: parts of texts, and numbers within 2 %.
FOUND = {
    "constants alone": ("fixed work", lambda: measured(
        Kernel("index", "TABLE", "t", 4.0, module="pos", source="net.py:3"),
        Delegate([Node("Add", "t BIAS", "u", 1.0)]),
        Delegate([Node("Add", "x u", "a", 0.5), conv("a", "b", 4.0)]),
    ), {"gain_ms": 5.001, "place": "net.py:3",
        "operators": "0/native_call_index.out/0\n1/Add/0\n0/OPERATOR_CALL/0"}),
    "computed weights": ("fixed work", lambda: measured(
        TABLE, Delegate([conv("x", "a", 2.0)]), Kernel("mm", "a t", "b", 5.0),
    ), {"cause": "index, and keeps mm outside the delegate", "operators": "2/native_call_mm.out/0",
        "high_ms": 7.0}),
    "computed filters": ("fixed work", lambda: measured(
        TABLE, Delegate([conv("x", "a", 2.0)]), Kernel("convolution", "a t", "b", 5.0),
    ), {"cause": "index, and keeps convolution outside the delegate", "high_ms": 7.0}),
    "of products alone": ("fixed work", lambda: measured(
        TABLE, Delegate([Node("Add", "x u", "a", 0.01)]), Kernel("mm", "a t", "b", 5.0)),
        {"cause": "index, and keeps mm outside the delegate", "basis": "bound"}),
    "guard": ("remedy", lambda: measured(
        *guarded_softmax(), export=exported(rewrites=[GUARD])
    ), {"cause": "outside the delegate: ", "place": "attn.py:9", "remedy": "attention",
        "hint": "--rewrite attention"}),
    "copies beside a product": ("remedy", lambda: measured(
        Kernel("expand_copy", "x", "a", 2.0),
        Delegate([Node("BatchMatrixMultiply", "a b", "c", 9.0)]),
        export=exported(rewrites=[PRODUCT]),
    ), {"cause": "outside the delegate: expand_copy", "remedy": "products", "high_ms": 2.0}),
    "all tokens": ("head", lambda: language_model(16), {
        "cause": "logits of 16 tokens are computed", "place": "head", "high_ms": 4 * 15 / 16}),
    "head": ("head", lambda: language_model(1), {
        "cause": "the head scores 512 tokens of the vocabulary: 0.131 MB of weights, 97 % of the "
                 "latency", "basis": "bound", "action": "layers were left out"}),
    "copied cache": ("KV cache", cached_attention, {
        "cause": "index_put, copy_ move 1.06 MB", "high_ms": 1.15 * 2.5, "gain_ms": 2.5 * 31 / 32,
        "action": "in place", "operators": "copy_", "remedy": "in_place"}),
    "beside a cache": ("undelegated", cached_attention, {
        "cause": "expand_copy", "high_ms": 1.0}),
    "nothing replaces it": ("undelegated", lambda: measured(
        Kernel("sort", "x", "y", 3.0), Delegate([conv("y", "z", 3.0)])
    ), {"basis": "bound", "gain_ms": math.nan, "high_ms": 3.001}),
    "one answer": ("undelegated", lambda: measured(
        Delegate([conv("x", "a", 2.0)]), Kernel("slice_scatter", "a x", "b", 2.0),
        Kernel("copy", "b x", "c", 1.0), Delegate([conv("c", "d", 2.0)])),
        {"cause": "slice_scatter, copy run outside the delegate", "high_ms": 3.002}),
    "no delegate": ("portable", lambda: measured(
        Kernel("convolution", "x", "a", 2.0), Kernel("relu", "a", "b", 1.0),
        export=exported(backend="portable"),
    ), {"cause": "nothing is delegated: 2 operators run in portable kernels", "high_ms": 3.0}),
    "for XNNPACK": ("undelegated", lambda: measured(
        *broken_by_gelu(), export=exported(backend="xnnpack")), {}),
    "casts of a norm": ("undelegated", lambda: measured(*cast_norm(), export=exported("fp16")),
                        {"cause": "native_layer_norm", "high_ms": 6.0}),
    "a cast alone": ("undelegated", lambda: measured(cast_norm()[0], cast_norm()[3]),
                     {"cause": "_to_dim_order_copy", "basis": "bound", "high_ms": 2.0}),
    "dynamic": ("undelegated", lambda: refused("some_op", "dynamic shape is not supported"),
                {"cause": "(dynamic shape is not supported)", "action": "no known remedy"}),
    "dtype refused": ("undelegated", lambda: refused("some_op", "invalid dtype"),
                      {"cause": "(invalid dtype)", "action": "no known remedy"}),
    "gelu refused": ("undelegated", lambda: refused("gelu", "invalid dtype"),
                     {"cause": "gelu runs outside the delegate (invalid dtype)"}),
    "turned back": ("needless transposes", lambda: turned_back(3),
                    {"gain_ms": 3.0, "cause": "Sigmoid", "action": "remove both"}),
    "of the model": ("needless transposes", lambda: gelu_between("fp32"),
                     {"action": "four dimensions"}),
    "of the exporter alone": ("needless transposes", lambda: measured(Delegate(
        [conv("x", "a", 2.0), layout("a", "b", TO_NCHW, 0.5), layout("b", "c", TO_NHWC, 0.5),
         conv("c", "y", 2.0)])), {"basis": "bound", "action": "no known remedy"}),
    "between delegates": ("needless transposes", lambda: measured(
        Delegate([conv("x", "a", 2.0), layout("a", "b", TO_NCHW, 0.5)]),
        Delegate([layout("b", "c", TO_NHWC, 0.5), conv("c", "y", 2.0)]),
    ), {"action": "one delegate"}),
    "undone by the exporter": ("needless transposes", lambda: measured(Delegate(
        [conv("x", "a", 2.0), layout("a", "b", TO_NCHW, 0.5), transpose("b", "c", TO_NHWC, 0.5),
         Node("FullyConnected", "c W", "y", 1.0)])), {"action": "1x1"}),
    "channels last": ("layout", squeezed, {}),
    "many delegates": ("fragments", lambda: sorted_between(8),
                       {"cause": "8 delegates*sort", "high_ms": 1.4, "basis": "unknown"}),
    "calls of delegates": ("fragments", lambda: measured(
        Delegate([conv("x", "a", 0.5)], overhead_ms=0.1),
        Delegate([conv("x", "b", 0.5)], overhead_ms=0.9),
    ), {"high_ms": 0.5}),
    "tiny": ("fragments", tiny_kernels, {"high_ms": 0.412, "cause": "starting 4*operators"}),
    "threads": ("threads", lambda: measured(PLAIN, scaling=scaling_of(3.0, 5.0), threads=2),
                {"gain_ms": 2.0, "high_ms": 2.11, "basis": "measured"}),
    "long enough for int8": ("dtype", lambda: measured(
        Delegate([conv("x W", "y", 3.0)]), export=exported()), {}),
    "half of it": ("dtype", lambda: gated("fp32", conv("a", "b", 1.0)),
                   {"cause": "1 of 2 can be quantised", "high_ms": 0.75}),
    "in float": ("float layers", lambda: gated("int8", conv("a", "b", 1.0)), {
        "cause": "int8 was asked for, but 1 of 2 convolutions*inside nn.LSTM", "basis": "bound",
        "action": "nn.Linear"}),
    "int4": ("float layers", lambda: measured(PLAIN, export=exported("8da4w")),
             {"hint": "--dtype int8"}),
    "shown to be equal": ("remedy", lambda: spelled_out(EQUAL), {
        "cause": "less work computes the same: hard swish instead of 4 operators",
        "hint": "--rewrite functions", "operators": "0/Add/1\n0/Clamp/2", "gain_ms": 0.75}),
    "groups": ("sizes", lambda: convolutions(), {
        "cause": "1 layer in 8 groups*padded to its tile; 5 GFLOP/s", "basis": "unknown",
        "action": "4 groups instead of 8 (another network: retrain it)"}),
}  # fmt: skip


@pytest.mark.parametrize("cause", FOUND)
def test_a_rule_finds_its_cause_once_and_says_what_it_gains(cause):
    rule, make, wanted = FOUND[cause]
    row = only(make(), rule)
    for column, value in wanted.items():
        if isinstance(value, str):
            assert fnmatch.fnmatchcase(row[column], f"*{value}*")
        else:
            assert row[column] == pytest.approx(value, rel=0.02, nan_ok=True)
    assert not row["gain_ms"] < row["low_ms"] - 1e-6 and not row["gain_ms"] > row["high_ms"] + 1e-6
    assert ".py" not in row["cause"]


TABLE = Kernel("index", "TABLE", "t", 4.0)
#: Where a rule finds nothing, with the reason.
SILENT = {
    "reads an input": ("fixed work", lambda: measured(
        Kernel("index", "TABLE x", "t", 4.0), Delegate([conv("t", "b", 4.0)]))),
    "chance": ("fixed work", lambda: measured(
        Kernel("randn", "TABLE", "t", 4.0), Delegate([conv("t", "b", 4.0)]))),
    "sizes are computed": ("fixed work", lambda: measured(
        TABLE, Delegate([conv("x", "b", 4.0)]), Kernel("size", "x", "", 0.1))),
    "belongs to fixed work": ("undelegated", lambda: measured(
        TABLE, Delegate([conv("x", "a", 2.0)]), Kernel("mm", "a t", "b", 5.0))),
    "belongs to the guard": ("undelegated", lambda: measured(
        *guarded_softmax(), export=exported(rewrites=[GUARD]))),
    "heads": ("layout", lambda: measured(Delegate(
        [transpose("x", "a", (0, 2, 1, 3), 1.0), Node("BatchMatrixMultiply", "a y", "b", 1.0)]))),
    "no words": ("head", lambda: language_model(16, words=1000)),
    "small head": ("head", small_head),
    "no cache": ("KV cache", lambda: measured(
        Kernel("copy_", "x", "y", 2.0, module="layers.0.attention"))),
    "cheap": ("undelegated", lambda: measured(
        Kernel("sort", "x", "y", 0.01), Delegate([conv("y", "z", 3.0)]))),
    "portable is wanted": ("undelegated", lambda: measured(
        *broken_by_gelu(), export=exported(backend="portable"))),
    "a matrix": ("needless transposes", lambda: measured(
        *turned(Node("FullyConnected", "b W", "c", 1.0)))),
    "operand in the old layout": ("needless transposes", lambda: measured(
        *turned(Node("Add", "b x", "c", 1.0)))),
    "another reader": ("needless transposes", lambda: measured(
        *turned(Node("Sigmoid", "b", "c", 1.0), Node("Softmax", "b", "q", 1.0)))),
    "turned further": ("needless transposes", lambda: measured(
        *turned(Node("Sigmoid", "b", "c", 1.0), again=TO_NHWC))),
    "would split the graph": ("layout", lambda: squeezed(s=(1, 1, 1, 32))),
    "would be copied back": ("layout", lambda: measured(
        Delegate([layout("x", "a", TO_NHWC, 0.5), conv("a", "b", 2.0)]),
        Kernel("mean", "b", "y", 0.1))),
    "one delegate": ("fragments", lambda: measured(PLAIN)),
    "large": ("fragments", lambda: measured(PLAIN)),
    "faster with more": ("threads", lambda: measured(
        PLAIN, scaling=scaling_of(5.0, 3.0), threads=2)),
    "one thread": ("threads", lambda: measured(PLAIN, scaling=scaling_of(3.0, 5.0), threads=1)),
    "as fast": ("threads", lambda: measured(PLAIN, scaling=scaling_of(3.0, 3.03), threads=2)),
    "one count": ("threads", lambda: measured(PLAIN, scaling=scaling_of(3.0), threads=2)),
    "microseconds": ("dtype", lambda: measured(
        Delegate([conv("x W", "y", 0.008)]), export=exported())),
    "no pattern": ("dtype", gated),
    "in its dtype": ("float layers", lambda: measured(PLAIN, export=exported("fp16"))),
    "not shown": ("remedy", spelled_out),
    "dense": ("sizes", lambda: convolutions(groups=DENSE)),
}  # fmt: skip


@pytest.mark.parametrize("reason", SILENT)
def test_a_rule_is_silent_where_there_is_nothing_to_gain(reason):
    rule, make = SILENT[reason]
    assert found(make(), rule).empty


def test_nothing_is_found_where_there_is_nothing():
    """What takes the time is named, and that nothing is known to do about it."""
    assert tabulate(measured(PLAIN))["rule"].to_list() == ["no known remedy"]


def guarded_softmax():
    place = {"module": "attn", "source": "attn.py:9"}
    return (
        Delegate([Node("BatchMatrixMultiply", "x x", "s", 1.0), Node("Softmax", "s", "p", 0.2)]),
        Kernel("eq", "s", "e", 1.0, **place),
        Kernel("logical_not", "e", "n", 0.3, **place),
        Kernel("any", "n", "y", 0.3, **place),
        Kernel("where", "y p", "z", 2.0, **place),
        Delegate([Node("BatchMatrixMultiply", "z x", "o", 1.0)]),
    )


def language_model(tokens, words=512, last=True):
    further = [Node("FullyConnected", "y V", "z", 4.0, module="last", flops=10**6)]
    return measured(
        Kernel("embedding", "TABLE x", "e", 0.1),
        Delegate(
            [
                Node("FullyConnected", "e W", "y", 4.0, module="head", flops=10**6),
                *([] if last else further),
            ]
        ),
        shapes={
            "TABLE": (512, 64),
            "e": (1, tokens, 64),
            "W": (words, 64),
            "y": (1, tokens, words),
        },
    )


def test_a_layer_before_others_is_no_head_though_it_is_as_wide_as_a_vocabulary():
    rules = {finding.rule for finding in language_model(16, last=False).opportunities}
    assert "head" not in rules


def test_small_groups_of_int4_weights_are_found_and_large_ones_are_not():
    facts = measured(Delegate([Node("FullyConnected", "x W", "y", 6.0, flops=10**6)]))
    name = "Fully Connected (NC, QP8, F32, QB4W) GEMM"
    grouped = facts.operators["operator"].replace("Fully Connected (NC, F32) GEMM", name)
    facts = changed(facts, operators=facts.operators.assign(operator=grouped))
    row = only(changed(facts, export=exported("8da4w")), "sizes")
    assert row["cause"].startswith("1 layer with int4 weights in groups of 32")
    assert row["action"].startswith("groups of 128 weights instead of 32")
    assert row["basis"] == "unknown", "nobody tried it"
    large = exported("8da4w", options={"group_size": "128"})
    for export in (large, None):
        assert found(changed(facts, export=export), "sizes").empty


def broken_by_gelu(**others):
    return (
        Delegate([conv("x", "a", 2.0), layout("a", "b", TO_NCHW, 0.05)]),
        Kernel("gelu", "b", "c", 5.0, module="act", source="act.py:2"),
        Delegate([layout("c", "d", TO_NHWC, 0.05), conv("d", "e", 2.0)]),
    )


@needs("remedies")
def test_an_undelegated_operator_is_found_with_what_it_breaks_and_why():
    reason = left("gelu", "fp16 is not taken")
    facts = measured(*broken_by_gelu(), export=exported("fp16", [reason], rewrites=[GELU]))
    row = only(facts, "remedy")
    assert row["rank"] == 1
    assert "gelu" in row["cause"]
    assert "fp16 is not taken" in row["cause"]
    assert row["remedy"] == "gelu_tanh"
    assert "--dtype fp16 --rewrite gelu_tanh" in row["hint"]
    assert set(row["operators"].splitlines()) == {
        "1/native_call_gelu.out/0", "1/OPERATOR_CALL/0", "0/StaticTranspose/1",
        "2/StaticTranspose/0",
    }  # fmt: skip
    assert 0 <= row["low_ms"] < row["gain_ms"] < row["high_ms"] <= 6.1
    assert row["basis"] == "roofline"


def turned(*between, again=TO_NCHW):
    """Two transposes, and what is between them."""
    nodes = [transpose("a", "b", TO_NHWC, 1.0), *between, transpose("c", "d", again, 1.0)]
    return [Delegate([conv("x", "a", 2.0), *nodes, conv("d", "y", 2.0)])]


def test_changes_of_layout_are_told_by_what_they_are_for():
    program = Delegate(
        [
            layout("x", "a", TO_NHWC, 0.5),
            conv("a", "b", 2.0),
            layout("b", "c", TO_NCHW, 0.8),
            Node("StaticReshape", "c", "d", 0.1),
            Node("FullyConnected", "d W", "y", 1.0),
        ]
    )
    table = found(measured(program), "layout")
    assert [title.partition(";")[0] for title in table["cause"]] == [
        "1 layout conversion for the program's inputs and outputs",
        "1 layout conversion for StaticReshape",
    ]
    assert "channels_last" in table["hint"].iloc[0]
    assert table["basis"].tolist() == ["removal", "bound"]
    assert table["gain_ms"].iloc[0] == pytest.approx(0.5, rel=0.01)


def test_an_input_that_is_quantised_is_laid_out_for_the_program():
    nodes = [Node("Convert", "x", "q", 0.1), layout("q", "a", TO_NHWC, 0.5), conv("a", "b", 2.0)]
    (row,) = found(measured(Delegate(nodes)), "layout").itertuples()
    assert row.cause == "1 layout conversion for the program's inputs and outputs"


def test_channels_last_inputs_promise_less_if_an_image_is_pooled():
    """The exporter copies an image of one pixel between two delegates."""
    pooled = Node("GlobalAvgPooling2d", "b", "y", 0.1)
    nodes = [layout("x", "a", TO_NHWC, 0.5), conv("a", "b", 2.0), pooled]
    m = measured(Delegate(nodes), shapes={"y": (1, 1, 1, 32)})
    (row,) = found(m, "layout").itertuples()
    assert (row.basis, row.high_ms) == ("bound", pytest.approx(0.5, rel=0.01))
    assert "copied between two delegates" in row.action


def test_squeeze_excite_with_linear_layers_becomes_convolutions():
    """Channels-last inputs made a network of two such blocks 4.3 times slower."""
    nodes = [conv("x", "a", 2.0), layout("a", "b", TO_NCHW, 0.5), Node("Multiply", "b s", "c", 0.5),
             layout("c", "d", TO_NHWC, 0.5), conv("d", "y", 2.0)]  # fmt: skip
    (row,) = found(measured(Delegate(nodes), shapes={"s": (1, 32, 1, 1)}), "layout").itertuples()
    assert "1x1 convolutions" in row.action
    assert "channels-last" not in row.action


def changes_of(facts, speedups):
    rows = facts.operators[facts.operators["family"].isin(["convolution", "gemm"])]
    ratio = np.array(speedups)
    return pd.DataFrame(
        {
            "key": rows["key"], "name": rows["operator"], "speedup": ratio,
            "low": ratio * 0.97, "high": ratio * 1.03,
            "candidate_ms": rows["mean_ms"], "baseline_ms": rows["mean_ms"] * ratio,
            "outcome": np.select([ratio > 1.1, ratio < 0.9], ["faster", "slower"], "unchanged"),
        }
    )  # fmt: skip


def products():
    convs = [conv(f"a{n}", f"a{n + 1}", 1.0) for n in range(4)]
    return measured(
        Delegate([conv("x", "a0", 1.0), *convs, Node("FullyConnected", "a4 W", "y", 4.0)])
    )


def test_a_product_that_the_extension_leaves_alone_is_found_with_what_the_others_gained():
    facts = products()
    facts = changed(facts, changes=changes_of(facts, [2.0] * 5 + [1.0]), toggle="avx512")
    kernel = {facts.operators["key"].iloc[5]: "f32_gemm_minmax"}
    assert "f32_gemm_minmax" in only(changed(facts, kernels=kernel), "no speed-up").cause
    row = only(facts, "no speed-up")
    assert "ran in" not in row["cause"]
    assert "Fully Connected" in row["cause"]
    assert "1.00x" in row["cause"]
    assert row["gain_ms"] == pytest.approx(2.0, rel=0.02)


def test_what_the_extension_makes_slower_is_a_finding_of_any_operator():
    facts = measured(Delegate([conv("x", "a", 1.0), Node("Softmax", "a", "y", 2.6)]))
    rows = facts.operators
    changes = pd.DataFrame(
        {
            "key": rows["key"], "name": rows["operator"], "candidate_ms": rows["mean_ms"],
            "speedup": 1 / 2.6, "low": 1 / 2.7, "high": 1 / 2.5, "baseline_ms": 1.0,
            "outcome": np.where(rows["operator"].str.contains("Softmax"), "slower", "unchanged"),
        }
    )  # fmt: skip
    row, unchanged = found(changed(facts, changes=changes, toggle="avx512"), "no speed-up").iloc
    assert unchanged["cause"].startswith("avx512 does not speed up Convolution")
    assert "Softmax" in row["cause"] and "is 2.6x slower with avx512" in row["cause"]
    assert row["gain_ms"] == pytest.approx(1.6, rel=0.05)
    assert 1.5 < row["low_ms"] < 1.6 < row["high_ms"] < 1.7
    assert found(changed(facts, changes=changes, toggle=""), "no speed-up").empty
    alone = changes_of(products(), [2.0] * 5 + [0.5])
    slow = changed(products(), changes=alone, toggle="avx512")
    assert "is 2.0x slower" in only(slow, "no speed-up")["cause"]


@pytest.mark.parametrize("toggle", ["avx512", ""])
def test_products_that_became_faster_or_were_not_compared_are_no_finding(toggle):
    facts = products()
    changes = changes_of(facts, [2.0] * 6) if toggle else None
    facts = changed(facts, changes=changes, toggle=toggle)
    assert found(facts, "no speed-up").empty


@pytest.mark.parametrize(("weights", "count"), [("fp32", 1), ("fp16", 0)])
def test_half_precision_convolutions_with_wide_weights(weights, count):
    facts = measured(
        Delegate([conv("x", "a", 2.0), conv("a", "b", 2.0)]),
        shapes={"W": (64, 1, 1, 64)},
        dtypes={"x": "fp16", "a": "fp16", "b": "fp16", "W": weights},
    )
    assert len(found(facts, "wide weights")) == count
    arm, other = (changed(facts, machine=name) for name in ("aarch64", "x86_64"))
    assert len(found(arm, "wide weights")) == count
    assert found(other, "wide weights").empty, "no other CPU has kernels that need them"


def scaling_of(*latencies_ms, scatter=0.01):
    """Wall times of five restarts at 1, 2, ... threads."""
    steps = scatter * np.array([-1.5, -0.5, 0.0, 0.5, 1.5])
    return {n: pd.Series(ms * (1 + (-1) ** n * steps)) for n, ms in enumerate(latencies_ms, 1)}


def test_a_gain_is_measured_only_if_a_comparison_shows_it():
    """Restarts that scatter by more than the gain, or a single one, prove nothing."""
    for scaling in (scaling_of(3.0, 3.5, scatter=0.2), {1: pd.Series([3.0]), 2: pd.Series([5.0])}):
        assert found(measured(PLAIN, scaling=scaling, threads=2), "threads").empty
    for one, other in (([5.0], [2.0]), ([5.0, 3.0, 4.0], [2.0, 4.0, 3.0])):
        facts = measured(PLAIN, export=exported())
        facts = changed(facts, by_dtype={"fp32": one, "int8": other})
        assert found(facts, "dtype").empty


def test_a_faster_dtype_is_measured_or_only_bounded():
    own = {"fp32": [5.0, 4.99, 5.01]}
    facts = measured(PLAIN, export=exported(), by_dtype=own)
    assert only(facts, "dtype")["basis"] == "bound"
    faster = changed(facts, by_dtype=own | {"int8": [2.0, 2.01, 1.99]})
    row = only(faster, "dtype")
    assert (row["gain_ms"], row["basis"]) == (pytest.approx(3.0), "measured")
    assert 2.8 < row["low_ms"] < row["high_ms"] < 3.2
    slower = changed(facts, by_dtype=own | {"fp16": [6.0, 6.01, 5.99]})
    assert found(slower, "dtype").empty


@needs("remedies")
def test_findings_are_ranked_and_well_formed():
    program = (*broken_by_gelu(), Kernel("sort", "e", "f", 1.0), Delegate([conv("f", "g", 1.0)]))
    table = tabulate(measured(*program, export=exported()))
    first = [key for keys in table["operators"][:3] for key in keys.splitlines()]
    assert len(first) == len(set(first)), "the first three share no operator"
    assert table["rank"].tolist() == list(range(1, len(table) + 1))
    ranked = measured(*program, export=exported()).opportunities
    helped, other, unknown = ranked[0], ranked[1], ranked[2]
    assert helped.rule == "dtype"
    assert other.nearest == "sort" and unknown.is_hopeless and "gelu" in unknown.cause
    assert unknown.spent_ms > 2 * other.spent_ms, "but nothing is known to help"
    latency = measured(*program).traced_ms
    shown = table["gain_ms"].fillna(table["high_ms"])
    assert table["share"].to_numpy() == pytest.approx((shown / latency).to_numpy())
    assert (table["low_ms"] <= table["high_ms"]).all()
    assert (table["high_ms"] <= measured(*program).traced_ms * 1.01).all()


@pytest.mark.parametrize("baseline", ["avx512_off", "avx512_on"])
def test_a_gain_is_positive_and_in_its_interval_whichever_side_is_the_baseline(baseline):
    run = wb.open_run(wb.sample_run("mobilenet_v3_small"), baseline=baseline)
    gains = [each.gain for each in run.opportunities if each.gain.of == "latency"]
    known = [gain for gain in gains if math.isfinite(gain.ms)]
    assert known and all(gain.ms > 0 and gain.low <= gain.ms <= gain.high for gain in known)


def made(rule, ms=math.nan, operators="", of="latency", basis="twin", **others):
    """A finding of a rule about operators, of a program of 100 ms."""
    gain = Gain(ms, 0.9 * ms, 1.1 * ms, basis, of=of)
    others = {"exact": True, "code": "y = x", "latency_ms": 100.0, "spent_ms": 2 * ms} | others
    return Finding(rule, gain, operators.split(), rule=rule, **others)


def test_what_can_be_tried_is_found_where_shares_are_unknown():
    rewrite = Rewrite("lookups", "", (), 0.5, None, parts=(("a",),))
    can, cannot = (made("remedy", basis="unmeasurable", rewrite=each) for each in (rewrite, None))
    assert (can.is_worth_it(), cannot.is_worth_it()) == (True, False)


def test_a_cause_that_another_explains_is_told_with_it_and_latency_comes_first():
    findings = [
        made("unknown", math.nan, basis="unmeasurable"), made("slow start", 30.0, of="start"),
        made("compute-bound", 9.0, "a"), made("fragments", 2.0, "b c"), made("layout", 1.0, "b"),
        made("pointwise chain", 0.9, "c d"), made("head", 0.5, "d"), made("threads", 0.4),
        made("other runtimes", 2.5, "c e"), made("other runtimes", 0.1, "f"),
        made("no way", 50.0, "g", code="", exact=False),
    ]  # fmt: skip
    ranked = rank_findings(findings)
    first = ["fragments", "threads", "other runtimes"]
    others = ["pointwise chain", "compute-bound", "no way", "slow start", "unknown"]
    assert [finding.rule for finding in ranked] == [*first, *others]
    assert [each.rule for each in ranked[0].also] == ["other runtimes", "layout"]
    assert [each.rule for each in ranked[3].also] == ["head"]


def test_a_vague_finding_neither_outranks_nor_swallows_exact_ones():
    vague = made("mine", 60.0, "a b c", exact=False)
    exact = [made("remedy", 5.0, "a"), made("fixed work", 3.0, "b")]
    ranked = rank_findings([vague, *exact])
    assert [finding.rule for finding in ranked] == ["remedy", "fixed work", "mine"]
    assert not any(finding.also for finding in ranked)
    (host,) = rank_findings([made("remedy", 5.0, "a b"), made("mine", 60.0, "a", exact=False)])
    assert [each.rule for each in host.also] == ["mine"]


@needs("remedies")
def test_an_interval_that_says_nothing_is_unknown_and_sinks():
    """A promise of everything between nothing and the whole inference comes after what is known."""
    swap = Rewrite("gelu_tanh", "GELU by its tanh approximation", ("gelu",), 1.0, 130.0, 9)
    program = (*broken_by_gelu(), Kernel("sort", "e", "f", 3.0), Delegate([conv("f", "g", 1.0)]))
    m = measured(*program, export=exported(rewrites=[swap]))
    row = only(m, "remedy")
    assert row["rank"] == 1 and row["low_ms"] > 0
    m = untraced(m, m.traced_ms / 2)
    vars(m)["share_error"] = 0.6  # of a busy machine
    row = only(m, "remedy")
    assert row["basis"] == "unknown" and row["rank"] > 1 and math.isnan(row["gain_ms"])
    assert "Gain: unknown, at most" in str(wb.show(m, "findings"))


def test_a_bound_of_two_restarts_that_scatter_is_unknown():
    """As of a few traces of others: the interval is everything, and no promise."""
    steady = measured(Kernel("sort", "x", "y", 1.0), Delegate([conv("y", "z", 3.0)]))
    assert only(steady, "undelegated")["basis"] == "bound"
    runs = steady.given["runs"].loc[[0, 1]].copy()
    runs.loc[1, "0/native_call_sort.out/0"] *= 4
    few = changed(steady, runs=runs)
    (finding,) = (each for each in few.opportunities if each.rule == "undelegated")
    assert finding.gain.high == pytest.approx(few.latency_ms)
    assert describe_gain(finding).startswith("unknown, at most")


@needs("remedies")
def test_what_a_small_remedy_claims_has_no_other_finding():
    """`no known remedy` never stands beside a remedy that the export has shown."""
    swap = Rewrite("mean", "means that keep their dimensions", ("mean",), 1.0, 200.0, 1, (("m",),))
    program = (Kernel("mean", "x", "y", 0.004, call_ms=0.0), Delegate([conv("y", "z", 3.0)]))
    rules = set(tabulate(measured(*program, export=exported(rewrites=[swap])))["rule"])
    assert rules == {"dtype"}, "a fifth of a per cent, which belongs to the remedy"
    larger = (Kernel("mean", "x", "y", 0.4, call_ms=0.0), *program[1:])
    row = only(measured(*larger, export=exported(rewrites=[swap])), "remedy")
    assert row["remedy"] == "mean" and row["rank"] == 1


def test_what_gets_faster_beside_a_remedy_is_no_finding_without_one():
    """Of copies that a product reads, a trial showed more than they take: the product is faster."""
    part = ("expand_copy", "BatchMatrixMultiply")
    swap = Rewrite("products", "one batch", part, 1.0, 200.0, 1, (part,))
    program = (Kernel("expand_copy", "x", "a", 2.0),
               Delegate([Node("BatchMatrixMultiply", "a b", "c", 9.0)]))  # fmt: skip
    m = measured(*program, export=exported(rewrites=[swap]))
    assert {each.rule for each in m.opportunities} == {"remedy", "no known remedy"}
    (remedy,) = (each for each in m.opportunities if each.rule == "remedy")
    trial = Trial("", "products", "one batch", 1, 1, 5, 11.0, 7.0, 4.0, 3.0, 5.0)
    for gain, rest in ((4.0, False), (1.9, True)):
        made = replace(trial, finding=remedy.id, scope=m.scope, gain_ms=gain, low_ms=gain - 0.5)
        tried = apply_trials(m.opportunities, [made], m.scope)
        assert any(each.rule == "no known remedy" for each in tried) == rest
        text = describe_gain(next(each for each in tried if each.rule == "remedy"))
        assert ("more than these operators take" in text) != rest


def test_a_trace_without_sidecar_still_names_its_kernels():
    facts = measured(*broken_by_gelu())
    bare = facts.operators.drop(columns=["xnodes", "module", "flops", "bytes", "source"])
    bare = bare.drop(columns=["module_class", "role"])
    facts = changed(facts, operators=bare, method=None)
    assert "gelu" in only(facts, "undelegated")["cause"]


@pytest.fixture(scope="module")
def sample():
    return recorded()


def test_the_recorded_sample_has_findings(sample):
    first, shown = sample.opportunities[0], wb.show(sample, "findings")
    assert first.action in shown.markdown
    assert f"<cite>{first.heading}</cite>" in shown.html
    assert str(shown).startswith("1. ")


def test_what_a_finding_says_is_text_and_no_markup(sample, monkeypatch):
    first = replace(sample.opportunities[0], cause="<script>*x*", command="", code="`<b>`")
    monkeypatch.setattr(type(sample.subject), "opportunities", (first,))
    shown = wb.show(sample.subject, "findings")
    assert "<script>" not in shown.html + shown.markdown
    assert "<b>`" not in shown.html
    monkeypatch.setattr(type(sample.subject), "opportunities", ())
    assert NONE in str(wb.show(sample.subject, "findings"))


@pytest.mark.parametrize("asked", [("nothing", 1), ("avx512_on", 7)])
def test_a_measurement_that_there_is_not_is_a_usage_error(sample, asked):
    with pytest.raises(Exception, match="unknown"):
        _ = sample[asked].findings


@pytest.mark.parametrize(
    "name",
    [
        "mobilenet_v3_small",
        *(
            pytest.param(name, marks=pytest.mark.whole)
            for name in ("toy_cnn", "smollm2", "squeezesam")
        ),
    ],
)
def test_every_heading_that_a_finding_names_is_in_the_notebook(name):
    notebook = Path(__file__).parents[1] / "notebooks" / "16_report.ipynb"
    added = {section.heading for section in list_sections().values()}
    for heading in tabulate(recorded(name))["heading"]:
        assert heading in added or f"## {heading}\\n" in notebook.read_text()


@pytest.mark.whole
def test_what_was_not_tried_is_called_an_estimate():
    names = ("mobilenet_v3_small", "toy_cnn", "smollm2", "vit_tiny")
    findings = [each for name in names for each in recorded(name).opportunities]
    shown = ("measured", "checked", "unknown", "unmeasurable", "refused")
    findings = [each for each in findings if each.rule != REST and each.gain.of == "latency"]
    promised = [each for each in findings if each.gain.basis not in shown]
    assert len(promised) >= 3
    for finding in promised:
        assert "estimate" in describe_gain(finding) or "unknown; these" in describe_gain(finding)


def test_of_a_program_of_others_it_is_not_said_that_no_remedy_is_known():
    program = (Kernel("avg_pool2d", "x", "y", 3.0), Delegate([conv("y", "z", 3.0)]))
    action = only(measured(*program), "undelegated")["action"]
    assert action.startswith("profile the model, its ExportedProgram")
    ours = measured(*program, export=exported(backend="xnnpack"))
    assert only(ours, "undelegated")["action"] == "no known remedy"


@needs("remedies")
def test_of_a_program_of_others_unknown_operators_are_one_finding():
    """A recurrence has many, of which each takes little; those with advice stay apart."""
    steps = [
        Kernel(name, f"{name}{n}", f"{name}{n + 1}", 0.02, call_ms=0)
        for n in range(20)
        for name in ("squeeze_copy", "split_with_sizes_copy", "sort")
    ]
    program = (*steps, Delegate([conv("x", "y", 3.0)]))
    rows = found(measured(*program), "undelegated")
    assert set(rows["cause"]) == {
        "squeeze_copy, split_with_sizes_copy run outside the delegate: 40 times",
        "sort runs outside the delegate: 20 times",
    }
    assert sorted(rows["high_ms"]) == pytest.approx([0.4, 0.8], rel=0.01)
    ours = found(measured(*program, export=exported(backend="xnnpack")), "undelegated")
    assert len(ours) == 3


def untraced(traced, latency_ms):
    """The same with another untraced latency; its shares hold, however large the difference."""
    made = changed(traced, latency_ms=latency_ms)
    vars(made)["use"] = traced.use
    return made


@needs("remedies")
def test_gains_are_those_of_untraced_latency():
    slow = measured(*broken_by_gelu(), export=exported(rewrites=[GELU]))
    fast = untraced(slow, slow.traced_ms / 2)
    before, after = only(slow, "remedy"), only(fast, "remedy")
    assert after["gain_ms"] == pytest.approx(before["gain_ms"] / 2)
    assert before["high_ms"] / 2 < after["high_ms"] <= slow.traced_ms / 2, (
        "it may not be traced more"
    )
    assert after["share"] == pytest.approx(before["share"])
    busy = measured(*(Kernel("sort", f"t{n}", f"t{n + 1}", 0.02, call_ms=0) for n in range(40)),
                       Delegate([conv("t40", "y", 4.0)]))  # fmt: skip
    real = untraced(busy, 0.9 * busy.traced_ms)
    row = only(real, "undelegated")
    assert row["high_ms"] == pytest.approx(0.9 * 0.8, rel=0.01)
    assert row["share"] == pytest.approx(row["high_ms"] / real.latency_ms)
    everything = measured(Kernel("sort", "x", "y", 3.0, call_ms=0.0))
    halved = untraced(everything, everything.traced_ms / 2)
    whole, half = only(everything, "undelegated"), only(halved, "undelegated")
    assert half["high_ms"] == pytest.approx(whole["high_ms"] / 2, rel=0.01), "there is no other"


@needs("remedies")
def test_where_tracing_disturbs_what_takes_nothing_in_the_trace_gains_nothing():
    """Shares may be far off, but without tracing no operator takes longer than with it."""
    program = (Kernel("sort", "x", "y", 0.005, call_ms=0.0), Delegate([conv("y", "z", 3.0)]))
    swap = Rewrite("slices", "slices instead", ("sort",), 1.0, 200.0)
    for ms, count in ((0.005, 0), (0.4, 1)):
        program = (Kernel("sort", "x", "y", ms, call_ms=0.0), *program[1:])
        traced = measured(*program, export=exported(rewrites=[swap]))
        disturbed = untraced(traced, traced.traced_ms / 2)
        vars(disturbed)["share_error"] = 0.4
        rows = found(disturbed, "remedy")
        assert len(rows) == count and (rows["high_ms"] <= 2.1 * ms).all()


def test_an_emulated_run_promises_nothing():
    program = (*broken_by_gelu(), *(Kernel("sort", f"e{n}", f"e{n + 1}", 0.001) for n in range(3)))
    given = {"scaling": scaling_of(3.0, 5.0), "threads": 2, "export": exported()}
    facts = measured(*program, **given)
    emulated = changed(facts, emulated=True)
    timed, table = tabulate(facts), tabulate(emulated)
    assert {"threads", "dtype"} <= set(timed["rule"]), "rules that look at times"
    assert {"threads", "dtype"}.isdisjoint(table["rule"])
    assert table[["gain_ms", "low_ms", "high_ms", "share"]].isna().all(axis=None)
    assert set(table["basis"]) == {"unknown"}
    assert not table["cause"].str.contains("%|ms|µs").any()
    assert (timed["spent"] > 0).any()
    first = table.iloc[0]
    assert first["cause"].startswith("sort runs outside"), "three are more than one, not slower"
    assert "gelu" in table["cause"].iloc[1]
    shown = wb.show(emulated, "findings")
    assert " ms" not in shown.markdown
    assert shown.markdown.count("measure on the device") == len(table)
    assert "not how fast" in shown.html


@functools.cache
def find_model(name):
    """The name of a model that exists: it is loaded, unless it has a hundred million weights."""
    return parse_name(name).label if name.startswith("llm:") else wb.load_model(name).name


@pytest.mark.parametrize(
    "name",
    [
        "mobilenet_v3_small",
        *(pytest.param(name, marks=pytest.mark.whole) for name in ("Ready", "smollm2")),
        pytest.param("squeezesam", marks=pytest.mark.cases),
    ],
)
def test_every_command_of_a_finding_works_as_written(name, monkeypatch, tmp_path):
    """Its options exist, its model can be loaded, its run, layer and program are there."""
    folder = shutil.copytree(wb.sample_run(name).parents[1], tmp_path / f"out_{name}")
    run = wb.open_run(next(path for path in (folder / "runs").iterdir()))
    if run.record.plan.pte:
        (folder / "artifacts").mkdir(exist_ok=True)
        (folder / "artifacts" / Path(run.record.plan.pte).name).touch()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").symlink_to(Path(__file__).parents[1] / "data")
    every = {each.command for m in run.traced for each in m.opportunities if each.command}
    for command in every:
        _, verb, *words = shlex.split(command, comments=True)
        values = COMMANDS[verb].make_context(verb, words).params
        for subject in filter(None, (values.get("subject"), values.get("run_dir"))):
            assert Path(subject).exists(), command
        if values.get("layer"):
            assert values["layer"] in set(run.operators["module"]), command
        for model in filter(None, (values.get("model"), *values.get("models", ()))):
            assert find_model(model), command


def test_a_model_of_a_library_is_named_as_it_is_loaded(sample):
    export = replace(
        sample.record.export, model="timm_resnet18", spec="", source="timm.models.resnet"
    )
    run = with_record(sample, export=export)
    assert complete_command(run.subject, "workbench profile MODEL").endswith(" timm:resnet18")


def test_the_command_lists_all_findings(sample, cli):
    code, out, _ = cli("findings", wb.sample_run())
    assert code == 0
    lines = [line for line in out.splitlines() if re.match(r"\d+\. ", line)]
    assert len(lines) == len(sample.findings) == len(sample.opportunities)
    for line, finding in zip(lines, sample.opportunities, strict=True):
        assert describe_cause(finding) in line and f"[{finding.id}]" in line


def test_work_inside_a_recurrent_layer_of_pytorch_is_no_advice_to_register_a_buffer():
    lstm = {"module": "lstm", "module_class": "LSTM"}
    program = (
        Kernel("full", "SIZE", "t", 4.0, **lstm),
        Kernel("split_with_sizes_copy", "x", "s", 4.0, **lstm),
        Delegate([conv("s", "b", 4.0)]),
    )
    facts = measured(*program)
    assert found(facts, "fixed work").empty
    rows = found(facts, "undelegated")
    assert len(rows) and not rows["hint"].str.contains("register_buffer").any()


GROUPED = {"groups": 8, "group_input_channels": 8, "group_output_channels": 8}
DENSE = {"groups": 1, "group_input_channels": 64, "group_output_channels": 64}


def convolutions(*, dense=3, grouped_ms=2.0, groups=GROUPED):
    like = {"attributes": {**DENSE, "kernel_height": 3, "kernel_width": 3}}
    slow = {"attributes": {**groups, "kernel_height": 3, "kernel_width": 3}}
    nodes = [conv(f"a{n}", f"a{n + 1}", 0.5, **like) for n in range(dense)]
    return measured(Delegate([*nodes, conv(f"a{dense}", "y", grouped_ms, **slow)]))


@pytest.mark.parametrize(("size", "logged", "count"), [(7, "IGEMM", 1), (5, "DWConv", 0)])
def test_depthwise_filters_too_large_for_a_depthwise_kernel(size, logged, count):
    attributes = {"groups": 64, "group_input_channels": 1, "group_output_channels": 1}
    attributes |= {"kernel_height": size, "kernel_width": size}
    slow = Node("DepthwiseConv2d", "x W", "a", 5.0, attributes, flops=10**7)
    facts = measured(Delegate([slow, conv("a", "b", 0.1)]))
    names = facts.operators["operator"].replace(
        "DepthwiseConv2d (NC)", f"Convolution (NHWC, F32) {logged}"
    )
    facts = changed(facts, operators=facts.operators.assign(operator=names))
    assert len(found(facts, "sizes")) == count


def test_nothing_is_said_of_parts_that_take_less_than_no_time():
    """Of a program of a microsecond, the calibrated cost of tracing exceeds what a call takes."""
    short = measured(Kernel("add", "x", "y", 0.0008, call_ms=-0.0004))
    assert re.search(
        r"too short to be told apart: OPERATOR_CALL would take -0.4 us", short.impossible
    )
    assert not re.search(r"-\d", str(short.findings.to_dict()))
    assert measured(Kernel("add", "x", "y", 0.0008, call_ms=-1e-6)).impossible == ""
