"""Models of timm and torchvision by name; stand-ins take the place of the packages."""

import re
import sys
import textwrap

import pytest

from workbench import store
from workbench.errors import SetupError, UsageError
from workbench.export.artifact import export_model
from workbench.models.loader import load_model
from workbench.options import ExportOptions

TIMM = """\
    import torch

    def list_models():
        return ["repvit_m1", "repvit_m2"]

    def create_model(name, pretrained):
        assert not pretrained
        model = torch.nn.Conv2d(3, 4, 3)
        model.pretrained_cfg = {"input_size": (3, 20, 24)}
        return model
"""
TORCHVISION = """\
    import torch
    from types import SimpleNamespace

    def list_models():
        return ["alexnet", "untrained"]

    def get_model_weights(name):
        crop = SimpleNamespace(transforms=lambda: SimpleNamespace(crop_size=[28]))
        return [crop] if name == "alexnet" else []

    def get_model(name, weights):
        assert weights is None
        return torch.nn.Conv2d(3, 4, 3)
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Put a package into the path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def install_package(name, text):
        path = tmp_path.joinpath(*name.split("."), "__init__.py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))

    before = set(sys.modules)
    yield install_package
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("timm", "torchvision"):
            del sys.modules[name]


@pytest.fixture
def libraries(install):
    """Both libraries, as far as they are needed."""
    install("timm", TIMM)
    install("torchvision", "from . import models")
    install("torchvision.models", TORCHVISION)


@pytest.mark.parametrize(
    ("spec", "size"),
    [
        ("timm:repvit_m1", (20, 24)),
        ("torchvision:alexnet", (28, 28)),
        ("torchvision:untrained", (224, 224)),
    ],
)
def test_a_library_model_has_its_published_size(libraries, spec, size):
    model = load_model(spec)
    assert model.name == spec.replace(":", "_")
    assert tuple(model.example_inputs[0].shape) == (1, 3, *size)
    assert not model.module.training


def test_a_library_model_is_exported_and_kept(libraries):
    told = []
    pte, again = (
        export_model("timm:repvit_m1", ExportOptions(backend="portable"), tell=told.append)
        for _ in range(2)
    )
    assert str(pte) == "out_timm_repvit_m1/artifacts/timm_repvit_m1_portable_fp32.pte"
    assert store.load_export(pte).inputs[0].shape == (1, 3, 20, 24)
    assert again == pte
    assert told[-1] == f"{pte.name}: up to date"
    assert not any("up to date" in line for line in told[:-1])


def test_an_unknown_name_shows_similar_ones(libraries):
    with pytest.raises(UsageError, match=r"timm: no model 'repvit_m3' among its 2 -> .*repvit_m"):
        load_model("timm:repvit_m3")


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_a_missing_library_comes_with_the_line_that_installs_it(library, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(
        SetupError, match=rf"{library}: is not installed -> pip install {library} torch==[\d.]+"
    ) as caught:
        load_model(f"{library}:net")
    assert "\n" not in str(caught.value)


def test_a_broken_library_says_why(install):
    install("timm", "import torchvision_of_no_kind")
    with pytest.raises(SetupError, match=re.escape("cannot be used: No module named 'torchvision")):
        load_model("timm:net")


def test_a_folder_of_that_name_is_no_library(install):
    install("timm", "")
    with pytest.raises(SetupError, match="timm: cannot be used"):
        load_model("timm:net")
