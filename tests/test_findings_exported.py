"""What was once found by hand, and then measured, the findings find by themselves.

In each of these models something costs much that is easily changed: see where it is spelled out.
"""

from dataclasses import replace

import pytest
from exported_runs import make_model, measure_briefly
from findings_table import tabulate
from needed import needs

import workbench as wb

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(900), needs("zoo")]


def findings_of(model, root, **options):
    """The findings of a model that is exported as it is spelled, and measured for a moment."""
    return tabulate(wb.open_run(measure_briefly(model, root, **options)))


def findings_on(machine, run):
    """The findings of a run, as if a CPU of another architecture had had the same times."""
    host = {**run.record.host, "machine": machine}
    return tabulate(replace(run, record=replace(run.record, host=host)))


def only(findings, rule, start=""):
    rows = findings[(findings["rule"] == rule) & findings["cause"].str.startswith(start)]
    assert len(rows) == 1, findings[["rule", "cause"]].to_string()
    return rows.iloc[0]


@pytest.fixture(scope="module")
def encoder():
    """EfficientSAM's encoder, as published but for its depth and the neck's norms."""
    import torch
    from torch import nn
    from torch.nn.functional import interpolate

    blocks = wb.load_model("vit_tiny").module.blocks

    class Encoder(nn.Module):
        def __init__(self, width=192, trained=14):
            super().__init__()
            self.trained = trained
            self.patch_embed = nn.Conv2d(3, width, 16, 16)
            self.pos_embed = nn.Parameter(torch.randn(1, trained * trained + 1, width) * 0.02)
            self.blocks = blocks[:2]
            self.neck = nn.Conv2d(width, 256, 1, bias=False)

        def forward(self, x):
            x = self.patch_embed(x)
            n, width, height, breadth = x.shape
            grid = self.pos_embed[:, 1:].reshape(1, self.trained, self.trained, width)
            grid = grid.permute(0, 3, 1, 2)
            positions = interpolate(grid, (height, breadth), mode="bicubic", align_corners=False)
            x = self.blocks((x + positions).flatten(2).transpose(1, 2))
            return self.neck(x.transpose(1, 2).reshape(n, width, height, breadth))

    torch.manual_seed(0)
    return Encoder(), (torch.randn(1, 3, 384, 384),)


def test_a_position_embedding_that_is_resized_at_every_inference(encoder, tmp_path):
    found = findings_of(make_model("encoder", *encoder), tmp_path)
    row = found.iloc[0]
    assert row["rule"] == "fixed work"
    assert "index" in row["cause"]
    assert "test_findings_exported.py" in row["place"]
    assert row["gain_ms"] > 0
    assert "register_buffer" in row["hint"]


def test_a_position_embedding_that_was_resized_beforehand(encoder, tmp_path):
    """What the finding suggests, done."""
    from torch import nn
    from torch.nn.functional import interpolate

    module, inputs = encoder
    grid = module.pos_embed[:, 1:].reshape(1, module.trained, module.trained, -1)
    positions = interpolate(grid.permute(0, 3, 1, 2), (24, 24), mode="bicubic").detach()

    class Ready(nn.Module):
        def __init__(self):
            super().__init__()
            self.patch_embed, self.blocks, self.neck = (
                module.patch_embed,
                module.blocks,
                module.neck,
            )
            self.register_buffer("positions", positions)

        def forward(self, x):
            x = self.patch_embed(x)
            n, width, height, breadth = x.shape
            x = self.blocks((x + self.positions).flatten(2).transpose(1, 2))
            return self.neck(x.transpose(1, 2).reshape(n, width, height, breadth))

    found = findings_of(make_model("ready", Ready(), inputs), tmp_path)
    assert "fixed work" not in set(found["rule"])


def test_the_guard_of_a_softmax_in_a_unet_with_attention(tmp_path):
    plain = findings_of("squeezesam", tmp_path / "plain")
    row = only(plain, "remedy", "outside")
    assert row["rank"] <= 2, "the first thing to do, or the second"
    assert "where" in row["cause"] and "eq" in row["cause"]
    assert "softmax(-1)" in row["hint"]
    spelled = findings_of("squeezesam", tmp_path / "spelled", rewrite=("attention",))
    assert "attention" not in set(spelled["remedy"])


@pytest.fixture(scope="module")
def image_encoder():
    """EdgeTAM's, for smaller images than the published ones."""
    import torch

    found = wb.load_model("edgetam_image_encoder")
    return replace(found, example_inputs=(torch.rand(1, 3, 256, 256),))


@pytest.fixture(scope="module")
def half_precision(image_encoder, tmp_path_factory):
    """EdgeTAM's encoder in fp16, as it is spelled."""
    root = tmp_path_factory.mktemp("half")
    return wb.open_run(measure_briefly(image_encoder, root, dtype="fp16"))


def test_gelu_in_half_precision_breaks_the_graph(half_precision):
    row = only(tabulate(half_precision), "remedy", "outside the delegate: gelu")
    assert row["rank"] <= 2
    assert row["remedy"] == "gelu" and "tanh" in row["hint"]


def test_pointwise_convolutions_in_half_precision_have_wide_weights_on_arm(
    half_precision, image_encoder, tmp_path
):
    row = only(findings_on("aarch64", half_precision), "wide weights")
    assert "without SME2 kernels" in row["cause"]
    assert "fp16w" in row["hint"]
    assert "wide weights" not in set(findings_on("x86_64", half_precision)["rule"])
    narrow = wb.open_run(measure_briefly(image_encoder, tmp_path, dtype="fp16w"))
    for machine in ("aarch64", "x86_64"):
        found = findings_on(machine, narrow)
        assert "wide weights" not in set(found["rule"])
        assert not found["cause"].str.startswith("gelu").any()
