"""The networks are the published ones, and stay alive; their table is complete."""

import random
import sys
from pathlib import Path

import pytest
import torch

import workbench as wb

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "tests" / "benchmarks"))

from zoo import HEADER, measure_in_process, read_rows, warm_up  # noqa: E402

#: Parameters and the shapes of the outputs; those of classifiers are as torchvision and timm state.
PUBLISHED = {
    "toy_cnn": (65_930, [(1, 10)]),
    "mobilenet_v3_small": (2_542_856, [(1, 1000)]),
    "vit_tiny": (5_717_416, [(1, 1000)]),
    "unet_small": (486_562, [(1, 2, 256, 256)]),
    "squeezesam": (2_742_942, [(1, 3, 512, 512), (1, 3)]),
    "edgetam_image_encoder": (
        4_882_736,
        [(1, 256, 256, 256), (1, 256, 128, 128), (1, 256, 64, 64)],
    ),
}
FAST = ("toy_cnn", "mobilenet_v3_small")
ROWS = read_rows(ROOT / "tests" / "benchmarks" / "records" / "zoo.md")
#: A row of theirs takes minutes.
COSTLY = ("edgetam_image_encoder",)


def outputs_of(module, *inputs):
    with torch.no_grad():
        outputs = module(*inputs)
    return outputs if isinstance(outputs, tuple) else (outputs,)


@pytest.mark.parametrize(
    "name",
    [name if name in FAST else pytest.param(name, marks=pytest.mark.cases) for name in PUBLISHED],
)
def test_a_model_is_the_published_one_and_alive(name):
    parameters, shapes = PUBLISHED[name]
    model = wb.load_model(name)
    assert sum(p.numel() for p in model.module.parameters()) == parameters
    assert not any(module.training for module in model.module.modules())
    outputs = outputs_of(model.module, *model.example_inputs)
    assert [tuple(output.shape) for output in outputs] == shapes
    changed = [x * 0.5 + 0.1 if x.numel() > 100 else x for x in model.example_inputs]
    others = outputs_of(model.module, *changed)
    for output, other in zip(outputs, others, strict=True):
        assert 0.02 < output.std() < 50
        assert (output - other).abs().mean() > 0.01 * output.abs().mean()
    if name in FAST:
        (half,) = outputs_of(model.module.half(), *[x.half() for x in model.example_inputs])
        assert (half - outputs[0]).abs().max() < 2e-2 * outputs[0].abs().max()


def test_state_dicts_have_the_published_names():
    published = {
        "mobilenet_v3_small": {
            "features.0.0.weight": (16, 3, 3, 3),
            "features.1.block.1.fc1.weight": (8, 16, 1, 1),
            "features.2.block.2.1.num_batches_tracked": (),
            "features.4.block.2.fc2.bias": (96,),
            "features.11.block.3.1.bias": (96,),
            "features.12.0.weight": (576, 96, 1, 1),
            "classifier.3.bias": (1000,),
        },
        "vit_tiny": {"blocks.11.attn.qkv.bias": (576,), "pos_embed": (1, 197, 192)},
    }
    for name, shapes in published.items():
        state = wb.load_model(name).module.state_dict()
        assert {key: tuple(state[key].shape) for key in shapes} == shapes


@pytest.mark.cases
def test_squeezesam_reacts_to_clicks_and_boxes():
    model = wb.load_model("squeezesam")
    image, points, box = model.example_inputs
    masks, _ = outputs_of(model.module, image, points, box)
    for others in ((points * 0, box), (points, box * 0)):
        assert not torch.allclose(outputs_of(model.module, image, *others)[0], masks)


# The table of the registered models


def test_the_table_has_every_model_and_each_row_figures_or_a_reason():
    dtypes = {"fp32", "fp16", "fp16w", "bf16", "int8", "int8dyn", "8da4w"}
    assert ROWS.keys() == {(model, dtype) for model in PUBLISHED for dtype in dtypes}
    for row in ROWS.values():
        cells = dict(zip(HEADER, row, strict=True))
        figures = [cells[name] for name in HEADER[2:7]]
        refused = not any(figures) and cells["remarks"]
        assert all(figures) or refused or cells["remarks"].startswith("**wrong**: "), row
        assert "Traceback" not in cells["remarks"]
        assert not cells["remarks"].startswith("**crash")


@pytest.mark.campaign
def test_a_sampled_row_is_reproduced():
    quick = [row for row in ROWS.values() if row[0] not in COSTLY and row[1] != "bf16"]
    row = random.Random(0).choice(quick)
    warm_up()
    again = dict(zip(HEADER, measure_in_process(row[0], row[1], None), strict=True))
    before = dict(zip(HEADER, row, strict=True))
    print(before, again)
    for name in ("delegates", "undelegated", "remarks"):
        assert again[name] == before[name], name
    if before["MB"]:
        assert float(again["MB"]) == pytest.approx(float(before["MB"]), rel=0.02)
    if before["SQNR (dB)"] not in ("", "equal"):
        # Another CPU has other kernels, which round differently.
        assert float(again["SQNR (dB)"]) == pytest.approx(float(before["SQNR (dB)"]), abs=6)
