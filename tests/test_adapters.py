"""The adapters in ``data/adapters``; a stand-in of a few lines takes the clone's place."""

import shutil
import sys
import textwrap
from pathlib import Path

import pytest

from workbench.errors import SetupError
from workbench.models.loader import load_model

ADAPTER = Path(__file__).parents[1] / "data" / "adapters" / "edgetam.py"

BUILD = """\
    import torch

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = torch.nn.Conv2d(3, 2, 16, 16)

        def forward_image(self, image):
            return {"backbone_fpn": [self.conv(image), image.mean((2, 3))]}

    def build_sam2(config, checkpoint, device):
        assert (config, device) == ("configs/edgetam.yaml", "cpu")
        model = Model()
        model.load_state_dict(torch.load(checkpoint, weights_only=True)["model"], strict=False)
        return model
"""


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A working directory with what the adapter wants of a clone, and a stand-in for timm."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    files = {
        "EdgeTAM/sam2/__init__.py": "",
        "EdgeTAM/sam2/build_sam.py": BUILD,
        "timm/__init__.py": "",
        "timm/utils.py": "def reparameterize_model(model):\n    return model\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    import torch

    checkpoint = tmp_path / "EdgeTAM/checkpoints/edgetam.pt"
    checkpoint.parent.mkdir()
    torch.save({"model": {"conv.bias": torch.tensor([5.0, 6.0])}}, checkpoint)
    before = set(sys.modules)
    yield tmp_path / "EdgeTAM"
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("sam2", "timm"):
            del sys.modules[name]


def test_edgetam_is_built_from_a_clone_and_its_checkpoint(clone):
    model = load_model(f"{ADAPTER}:EdgeTam")
    assert model.module.model.conv.bias.tolist() == [5, 6]
    assert tuple(model.example_inputs[0].shape) == (1, 3, 1024, 1024)
    features, means = model.module(model.example_inputs[0] * 0 + 0.485)
    assert features.shape == (1, 2, 64, 64)
    assert means[0].tolist() == pytest.approx([0, (0.485 - 0.456) / 0.224, (0.485 - 0.406) / 0.225])


@pytest.mark.parametrize("missing", ["checkpoints/edgetam.pt", "sam2"])
def test_edgetam_says_what_is_missing_in_one_line(clone, missing):
    path = clone / missing
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(SetupError, match=rf"^EdgeTAM/{missing}.*: no such file -> clone") as caught:
        load_model(f"{ADAPTER}:EdgeTam")
    assert "\n" not in str(caught.value)
