"""What exports make of parts of the networks: what is delegated, quantised and merged."""

import pytest
import torch
from exporting import export_quietly
from torch import nn

from workbench.export.artifact import describe_export
from workbench.models.loader import LoadedModel
from workbench.plugins.zoo.blocks import Block, initialize, set_norm_statistics
from workbench.plugins.zoo.edgetam_image_encoder import (
    EdgeTamImageEncoder,
    RepDepthwise,
    prepare_for_export,
)
from workbench.plugins.zoo.squeezesam import SqueezeSam, click_and_box


@pytest.mark.cases
def test_the_partition_says_what_was_left_and_why(tmp_path):
    torch.manual_seed(0)
    block = initialize(nn.Sequential(Block(32, 2, 64)))
    export = export_quietly(LoadedModel("block", block, (torch.randn(1, 5, 32),)), tmp_path)
    norms = [row for row in export.partition if row.operator == "aten.native_layer_norm"]
    assert [norm.count for norm in norms] == [1, 1]
    assert {norm.modules for norm in norms} == {("0.norm1",), ("0.norm2",)}
    for norm in norms:
        assert "blocks.py:" in norm.source
        assert (norm.delegated, norm.reason) == (False, "XNNPACK has no node for it")
    taken = {row.operator: row.count for row in export.partition if row.delegated}
    assert taken["aten.linear"] == 4
    assert taken["aten.bmm"] == 2
    assert any(line.startswith("not delegated: 1 x aten.native_layer_norm") for line in
               describe_export(export))  # fmt: skip


@pytest.mark.cases
def test_a_small_squeezesam_survives_quantisation(tmp_path):
    torch.manual_seed(0)
    image, pointers = torch.randn(1, 3, 64, 64), click_and_box(64)
    module = set_norm_statistics(initialize(SqueezeSam(64, (8, 8, 16, 16))), image, *pointers)
    export = export_quietly(LoadedModel("sam", module, (image, *pointers)), tmp_path, dtype="int8")
    assert [output.faithful for output in export.fidelity] == [True, True]


def test_merged_branches_compute_the_same():
    torch.manual_seed(0)
    module = initialize(EdgeTamImageEncoder(widths=(8, 16, 24, 32), depths=(2, 3, 4, 2)))
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.weight, 0.3, 0.6)
            nn.init.normal_(layer.bias)
    set_norm_statistics(module, torch.rand(2, 3, 64, 64))
    x = torch.rand(1, 3, 64, 64)
    before = module(x)
    merged = prepare_for_export(module)
    assert not any(isinstance(layer, RepDepthwise) for layer in merged.modules())
    for ours, theirs in zip(merged(x), before, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
