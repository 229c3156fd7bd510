"""Functions between int8 layers that run in fp32 are one finding, with what each costs."""

import pytest
import torch
from made_models import exported
from needed import needs
from program_builder import Delegate, Kernel, Node, measured
from torch import nn

import workbench as wb

TYPES = {"W": "qint8"} | dict.fromkeys(("q", "a", "b", "c", "d", "e"), "qint8")


def conv(reads, writes, ms=2.0):
    return Node("Conv2d", f"{reads} W", writes, ms, flops=10**7)


def function(reads, writes, number, *kinds, ms=0.5, module="act"):
    """A function of a quantised tensor between two conversions."""
    place = {"module": f"{module}.{number}"}
    names = [f"f{number}{n}" for n in range(len(kinds) + 1)]
    first = Node("Convert", reads, names[0], ms, role="dequantize", **place)
    inner = [
        Node(kind, f"{one} {names[0]}" if kind == "Multiply" else one, other, ms, **place)
        for kind, one, other in zip(kinds, names, names[1:], strict=False)
    ]
    last = Node("Convert", names[-1], writes, ms, role="quantize", **place)
    return [first, *inner, last]


def find(*program, dtype="int8"):
    m = measured(*program, export=exported(dtype), dtypes=TYPES)
    return [each for each in m.opportunities if each.rule == "float functions"]


def between(*nodes, more=()):
    return Delegate([conv("q", "a"), *nodes, conv("b", "c"), *more])


def test_all_functions_in_fp32_are_one_finding_with_the_cost_of_each():
    silu, gelu = function("a", "b", 0, "Sigmoid", "Multiply"), function("c", "d", 1, "Gelu", ms=0.1)
    (finding,) = find(between(*silu, more=(*gelu, conv("d", "e"))))
    assert len(finding.operators) == 7, "conversions, too"
    assert "2 functions between int8 layers run in fp32 (Sigmoid, Gelu)" in finding.cause
    assert finding.cause.index("in act.0") < finding.cause.index("in act.1"), "the longest first"
    assert finding.gain.high == pytest.approx(2.3, rel=0.02)
    assert finding.gain.basis == "bound"
    assert "another function" in finding.action


@pytest.mark.parametrize("kind", ["fp32", "ReLU", "arithmetic", "of a norm", "returned"])
def test_what_is_no_function_between_int8_layers_is_silent(kind):
    silu = function("a", "b", 0, "Sigmoid", "Multiply")
    programs = {
        "ReLU": between(Node("Clamp", "a", "b", 0.1)),
        "arithmetic": between(*function("a", "b", 0, "Multiply")),
        "of a norm": between(*function("a", "b", 0, "Softmax")),
        "returned": Delegate([conv("q", "a"), *silu[:-1]]),
    }
    assert (
        find(programs.get(kind, between(*silu)), dtype="fp32" if kind == "fp32" else "int8") == []
    )


def test_kernels_outside_the_delegate_count_as_well():
    (finding,) = find(
        Delegate([conv("q", "a")]), Kernel("dequantize_per_tensor", "a", "f", 1.0),
        Kernel("gelu", "f", "g", 1.0), Kernel("quantize_per_tensor", "g", "b", 1.0),
        Delegate([conv("b", "c")]),
    )  # fmt: skip
    assert len(finding.operators) >= 3


@needs("remedies")
@pytest.mark.cases
def test_relu_is_tried_instead_of_silu_and_is_another_function(tmp_path):
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 16, 3), nn.SiLU(), nn.Conv2d(16, 16, 3), nn.SiLU(), nn.Conv2d(16, 8, 1)]
    net, x = nn.Sequential(*layers).eval(), torch.randn(1, 3, 32, 32)
    program = wb.export_model(net, x, options=wb.ExportOptions(dtype="int8"), root=tmp_path)
    brief = wb.MeasureOptions(processes=2, runs=4, evidence=False, cold_start=False, roof=False)
    run = wb.measure(program, options=brief, root=tmp_path)
    (finding,) = (each for each in run.opportunities if each.rule == "float functions")
    assert len(finding.operators) == 8
    (trial,) = wb.check_findings(run, net, x, finding=finding.id, budget_s=3)
    assert (trial.problem, trial.tried, trial.whole) == ("", 2, True)
    assert trial.sqnr_db is not None and trial.sqnr_db < 40, "it says how far it differs"
