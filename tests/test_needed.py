"""What operators of the delegate need of their time, and which sizes of layers a trial changes."""

import numpy as np
import pytest
import torch
from findings_table import tabulate
from needed import needs
from program_builder import Delegate, Node, changed, make_roof, measured
from torch import nn

import workbench as wb
from workbench.analysis.findings.finding import Change

#: Of a microkernel with tiles of 7 rows and 16 channels, and a depthwise one of 9 taps.
PRODUCT = "xnn_f32_igemm_minmax_ukernel_7x16__avx512f_broadcast"
DEPTHWISE = "xnn_f32_dwconv_minmax_ukernel_9p16c__avx512f"


def conv(reads, writes, channels, ms=2.0, groups=1, size=3, kind="Conv2d", flops=10**7):
    """A convolution from and to so many channels; images have 32 x 32 pixels."""
    read, written = channels
    attributes = {
        "groups": groups, "group_input_channels": read // groups,
        "group_output_channels": written // groups, "kernel_height": size, "kernel_width": size,
    }  # fmt: skip
    return Node(kind, f"{reads} W", writes, ms, attributes, flops=flops)


def network(width, **facts):
    """A layer of so many channels between two others, of 3 and 16 channels at the ends."""
    nodes = [
        conv("x", "a", (3, width)),
        conv("a", "b", (width, width)),
        conv("b", "y", (width, 16)),
    ]
    sizes = dict.fromkeys("ab", (1, 32, 32, width)) | {"y": (1, 32, 32, 16)}
    return measured(Delegate(nodes), shapes=sizes, **facts)


def changes(measurement):
    """What each finding about sizes would change."""
    rewrites = [each.rewrite for each in measurement.opportunities if each.rule == "sizes"]
    return [(each.of, each.now, each.new) for each in rewrites]


@pytest.mark.parametrize(
    ("width", "wanted"),
    [(44, 48), (66, 64), (100, 96), (12, 16), (64, 0), (24, 0), (8, 0), (3, 0)],
)
def test_channels_that_fill_no_tiles_are_changed_to_the_next_number_that_does(width, wanted):
    assert changes(network(width)) == ([("channels", width, wanted)] if wanted else [])


def test_a_change_of_a_size_is_another_network_and_promises_nothing():
    (finding,) = (each for each in network(44).opportunities if each.rule == "sizes")
    assert len(finding.operators) == 3, "all that read or write them"
    assert (finding.gain.basis, finding.is_hopeless) == ("unknown", False)
    assert finding.action == "48 channels instead of 44 (another network: retrain it)"
    assert isinstance(finding.rewrite, Change) and not finding.remedy, "nothing applies it"
    assert f"--check {finding.id}" in finding.command


def test_channels_of_inputs_and_outputs_are_those_of_the_task():
    ends = measured(Delegate([conv("x", "a", (12, 64)), conv("a", "b", (64, 21)),
                              Node("Sigmoid", "b", "y", 0.1)]))  # fmt: skip
    assert changes(ends) == []


@pytest.mark.parametrize(
    ("node", "wanted"),
    [
        (conv("a", "b", (32, 32), groups=8), ("groups", 8, 2)),
        (conv("a", "b", (64, 64), groups=2), None),
        (conv("a", "b", (64, 64), groups=64, size=7, kind="DepthwiseConv2d"), ("taps", 7, 5)),
        (conv("a", "b", (64, 64), groups=64, size=5, kind="DepthwiseConv2d"), None),
    ],
    ids=["narrow groups", "wide groups", "7x7", "5x5"],
)
def test_groups_and_filters_without_a_kernel_of_their_own(node, wanted):
    m = measured(Delegate([conv("x", "a", (3, 64)), node, conv("b", "y", (64, 16))]))
    rows = m.operators["operator"].replace("DepthwiseConv2d (NC)", "Convolution (NHWC, F32) IGEMM")
    m = changed(m, operators=m.operators.assign(operator=rows))
    assert changes(m) == ([wanted] if wanted else [])


def test_layers_at_the_peak_or_the_bandwidth_of_the_machine_need_their_time():
    """200 million operations in 2 ms are all that 100 GFLOP/s can do; of others, nobody knows."""
    m = network(44, roof=make_roof())
    assert m.needed["reason"].tolist() == [""] * 3
    fast = measured(Delegate([conv("x", "a", (44, 44), flops=19 * 10**7)]), roof=make_roof())
    (row,) = fast.needed.itertuples()
    assert (row.reason, row.roof_share) == ("compute", pytest.approx(0.95, rel=0.01))
    assert changes(fast) == []
    plain = measured(Delegate([Node("Sigmoid", "x", "y", 0.0058)] * 1), roof=make_roof())
    assert plain.needed["reason"].tolist() == [""], "too short to tell"
    pool = measured(
        Delegate([Node("Sigmoid", "x", "y", 7.0, flops=1)]), roof=make_roof(),
        shapes=dict.fromkeys("xy", (1, 2 ** 23)),
    )  # fmt: skip
    assert pool.needed["reason"].tolist() == ["memory"]
    cause = tabulate(pool).iloc[0]["cause"]
    assert cause.startswith("Sigmoid (NC) needs 100 % of the time: 96 % of the bytes")


def test_without_peaks_an_operator_needs_what_similar_ones_take():
    nodes = [conv("x", "a", (64, 64)), conv("a", "b", (64, 64)), conv("b", "c", (64, 64)),
             conv("c", "y", (64, 64), ms=6.0)]  # fmt: skip
    table = measured(Delegate(nodes)).needed
    assert table["mean_ms"].iloc[0] == pytest.approx(6.0, rel=0.01)
    assert table["twins"].iloc[0] == pytest.approx(1 / 3, rel=0.01)
    assert table["reason"].tolist() == ["", "twins", "twins", "twins"]
    few = measured(Delegate(nodes[1:])).needed
    assert few["reason"].tolist() == ["", "", ""], "two others have no median"


def test_the_needed_part_of_the_arithmetic_follows_from_the_tile_of_the_microkernel():
    nodes = [conv("x", "a", (3, 44)), conv("a", "b", (44, 44), groups=11),
             conv("b", "c", (44, 44), groups=44, kind="DepthwiseConv2d")]  # fmt: skip
    m = measured(Delegate(nodes), shapes=dict.fromkeys("abc", (1, 32, 32, 44)))
    keys = list(m.costs.index[:3])
    table = changed(m, kernels=dict(zip(keys, (PRODUCT, PRODUCT, DEPTHWISE), strict=True)))
    needed = table.judged.set_index("key").loc[keys, "needed"].tolist()
    rows = 1024 / 1029
    assert needed == pytest.approx([rows * 44 / 48, rows * 4 / 16, 44 / 48])
    assert np.isnan(m.judged.set_index("key").loc[keys, "needed"]).all(), "no name, no tile"
    scaled = PRODUCT.replace("7x16", "7x4v")
    table = changed(m, kernels={keys[0]: scaled})
    assert np.isnan(table.judged.set_index("key").at[keys[0], "needed"]), "as wide as the CPU's"


class Narrow(nn.Module):
    """Convolutions of 44 channels."""

    def __init__(self, width=44, groups=1):
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.layers = nn.Sequential(
            *(nn.Conv2d(width, width, 3, padding=1, groups=groups) for _ in range(3))
        )
        self.last = nn.Conv2d(width, 16, 1)

    def forward(self, x):
        return self.last(self.layers(self.first(x).relu()).relu())


@needs("remedies")
@pytest.mark.whole
@pytest.mark.parametrize(
    ("groups", "wanted"),
    [(1, "channels_48"), pytest.param(12, "groups_3", marks=pytest.mark.cases)],
)
def test_a_changed_size_is_tried_on_the_layers_alone(groups, wanted, tmp_path):
    net, x = Narrow(44 if groups == 1 else 48, groups), torch.randn(1, 3, 32, 32)
    program = wb.export_model(net.eval(), x, root=tmp_path)
    brief = wb.MeasureOptions(processes=2, runs=4, evidence=False, cold_start=False, roof=False)
    run = wb.measure(program, options=brief, root=tmp_path, artifacts=False)
    (finding,) = (
        each for each in run.opportunities if each.rewrite and each.rewrite.name == wanted
    )
    (trial,) = wb.check_findings(run, net, x, finding=finding.id, budget_s=1)
    assert (trial.problem, trial.answer in ("gains", "loses", "not shown")) == ("", True)
    assert trial.tried == (2 if groups > 1 else 4), "two of three layers that are alike"
    assert trial.sqnr_db is None, "another network has other outputs"
    (told,) = (each for each in run.opportunities if each.id == finding.id)
    assert told.trial == trial
