import contextlib
import itertools
import logging
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import textwrap
import threading
import time
import types
import warnings
from pathlib import Path

import pytest
import torch
from exporting import NET, problem, saved_inputs
from safetensors.torch import save_file
from torch import nn

import workbench as wb

# Registry


def test_an_unknown_model_is_named_with_the_nearest_one():
    text = problem(wb.load_model, "toy_cn")
    assert "'toy_cn'" in text
    assert "did you mean 'toy_cnn'?" in text
    assert "path/to/file.py:NAME" in text
    # The name of a folder or program, which has an underscore.
    assert "did you mean timm:x1?" in problem(wb.load_model, "timm_x1")


def test_a_model_can_be_registered_and_replaced():
    @wb.register_model("tiny")
    class Tiny(wb.EagerModelBase):
        size = 2

        def get_eager_model(self):
            return nn.Linear(4, self.size)

        def get_example_inputs(self):
            return (torch.ones(1, 4),)

    class Wider(Tiny):
        size = 3

    names = wb.list_models()
    assert {"tiny", "toy_cnn"} <= set(names) and names == sorted(names)
    assert wb.load_model("tiny").module.out_features == 2
    assert wb.register_model("tiny", Wider) is Wider
    loaded = wb.load_model("tiny")
    assert (loaded.name, loaded.module.out_features) == ("tiny", 3)
    assert loaded.source == __name__
    assert (loaded.kwargs, loaded.dynamic_shapes) == ({}, None)


def test_a_class_without_the_interface_is_refused():
    assert "get_eager_model" in problem(wb.register_model, "plain", nn.Linear)
    assert "plain" not in wb.list_models()


def test_the_name_of_a_builtin_model_is_locked():
    cls = type("Other", (), {"get_eager_model": print, "get_example_inputs": print})
    assert "toy_cnn" in problem(wb.register_model, "toy_cnn", cls)


# Models of the workbench


def test_loading_is_repeatable_and_leaves_the_random_numbers_alone():
    before = torch.get_rng_state()
    first, second = wb.load_model("toy_cnn"), wb.load_model("toy_cnn")
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first.example_inputs[0], second.example_inputs[0])
    for a, b in zip(first.module.parameters(), second.module.parameters(), strict=True):
        assert torch.equal(a, b)


# Weights of the user's


@pytest.mark.whole
def test_a_state_dict_is_loaded(tmp_path):
    state = {k: v + 1 for k, v in wb.load_model("toy_cnn").module.state_dict().items()}
    torch.save(state, tmp_path / "weights.pt")
    loaded = wb.load_model("toy_cnn", state_dict=tmp_path / "weights.pt")
    assert torch.equal(loaded.module.fc.bias, state["fc.bias"])


def test_a_state_dict_that_does_not_fit_is_refused(tmp_path):
    file = tmp_path / "weights.safetensors"
    state = wb.load_model("toy_cnn").module.state_dict()
    save_file({k: v for k, v in state.items() if k != "fc.bias"}, file)
    assert "lacks 'fc.bias'" in problem(wb.load_model, "toy_cnn", state_dict=file)
    save_file(state | {"head": torch.ones(1)}, file)
    assert "'head'" in problem(wb.load_model, "toy_cnn", state_dict=file)
    save_file(state | {"fc.bias": torch.ones(3)}, file)
    assert "size mismatch" in problem(wb.load_model, "toy_cnn", state_dict=file)


@pytest.mark.whole
def test_a_state_dict_that_would_run_code_is_refused(tmp_path):
    file = tmp_path / "weights.pt"
    torch.save(nn.Linear(2, 2), file)
    text = problem(wb.load_model, "toy_cnn", state_dict=file)
    assert "cannot be loaded as a state dict" in text
    assert "\n" not in text
    gone = tmp_path / "gone.pt"
    assert "no such file" in problem(wb.load_model, "toy_cnn", state_dict=gone)


# Files of the user's


@pytest.mark.parametrize(
    "rest",
    [
        "EXAMPLE_INPUTS = (torch.ones(3, 4),)",
        "example_inputs = torch.ones(3, 4)",
        "def get_example_inputs():\n    return [torch.ones(3, 4)]",
        "Net.get_example_inputs = staticmethod(lambda: (torch.ones(3, 4),))",
    ],
)
def test_example_inputs_are_found(write, rest):
    file = write(f"{NET}\n\n{rest}\n")
    loaded = wb.load_model(f"{file}:Net")
    assert (loaded.name, loaded.source) == ("Net", "mine.py")
    assert [tuple(x.shape) for x in loaded.example_inputs] == [(3, 4)]
    assert not loaded.module.training


@pytest.mark.parametrize("name", ["Net", "Eager", "made", "eager", "make", "make_eager"])
def test_classes_instances_and_functions_are_models(write, name):
    file = write(
        NET
        + textwrap.dedent("""
        class Eager:
            def get_eager_model(self):
                return Net()

            def get_example_inputs(self):
                return (torch.ones(1, 4),)

            def get_example_kwarg_inputs(self):
                return {}

            def get_dynamic_shapes(self):
                return ({0: torch.export.Dim("batch")},)

            def get_calibration_inputs(self):
                return [(torch.zeros(1, 4),), (torch.ones(1, 4),)]

            def prepare_for_export(self, module):
                module.prepared = True
                return module


        def make():
            return Net()


        def make_eager():
            return Eager()


        made, eager = Net(), Eager()
        example_inputs = (torch.ones(1, 4),)
        """)
    )
    loaded = wb.load_model(f"{file}:{name}")
    assert isinstance(loaded.module, nn.Module)
    is_plain = name in ("Net", "made", "make")
    assert (loaded.dynamic_shapes is None) == is_plain
    assert len(loaded.calibration) == (0 if is_plain else 2)
    assert hasattr(loaded.module, "prepared") != is_plain


def test_a_users_random_weights_and_inputs_are_repeatable(write):
    file = write(f"{NET}\nEXAMPLE_INPUTS = (torch.randn(1, 4),)\n")
    first = wb.load_model(f"{file}:Net")
    torch.rand(5)
    second = wb.load_model(f"{file}:Net")
    assert torch.equal(first.module.fc.weight, second.module.fc.weight)
    assert torch.equal(first.example_inputs[0], second.example_inputs[0])
    assert "seed 0" in first.input_source


def test_neighbours_of_the_same_name_are_kept_apart(write):
    before = list(sys.path)
    for size, folder in ((2, "a"), (3, "b")):
        write(f"SIZE = {size}\n", f"{folder}/layers.py")
        write("from layers import SIZE\n", f"{folder}/parts/__init__.py")
        text = """\
            import torch
            from parts import SIZE
            net = torch.nn.Linear(4, SIZE)
            example_inputs = torch.ones(1, 4)
            """
        file = write(text, f"{folder}/net.py")
        assert wb.load_model(f"{file}:net").module.out_features == size
    assert sys.path == before
    assert not {"layers", "parts", "net", "model_file_net"} & set(sys.modules)


def test_the_trial_run_does_not_touch_the_model(write):
    file = write("""\
        import torch


        class Counter(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("calls", torch.zeros(1))

            def forward(self, x):
                self.calls += 1
                return x.add_(self.calls)


        EXAMPLE_INPUTS = (torch.zeros(2),)
        """)
    loaded = wb.load_model(f"{file}:Counter")
    assert loaded.module.calls.item() == 0
    assert loaded.example_inputs[0].tolist() == [0, 0]


USAGE, ERROR = "UsageError: ", "WorkbenchError: "


@pytest.mark.parametrize(
    ("text", "spec", "words"),
    [
        (NET, "gone.py:Net", USAGE + "gone.py: no such file"),
        (NET, "gone.py", USAGE + "gone.py: no such file"),
        (NET, "mine.py", USAGE + "mine.py: no model named.*mine.py:Net"),
        ("import torch\n", "mine.py", USAGE + "mine.py: no model named.*path/to/file.py:NAME"),
        (NET, "mine.py:", USAGE + ".*no model named"),
        (NET, "mine.txt:Net", USAGE + "mine.txt: not a Python file"),
        (NET, "mine.py:Nett", USAGE + "mine.py: unknown.*did you mean 'Net'?"),
        (NET + "SIZE = 3\n", "mine.py:SIZE", USAGE + ".*unknown model 'SIZE'.*valid: Net"),
        (NET, "mine.py:Net", ERROR + "mine.py: Net has no example inputs.*EXAMPLE_INPUTS"),
        (NET + "example_inputs = 3\n", "mine.py:Net", ERROR + ".*has no example inputs"),
        ("import torch\n1 / 0\n", "mine.py:Net", ERROR + "mine.py:2:.*ZeroDivisionError"),
        ("import torch\n)\n", "mine.py:Net", ERROR + "mine.py:2:.*SyntaxError"),
        ("import gone_module\n", "mine.py:Net", ERROR + "mine.py:1:.*gone_module"),
        ("raise SystemExit(3)\n", "mine.py:Net", ERROR + "mine.py:1:.*SystemExit"),
        ("def f():\n    return 3\n", "mine.py:f", ERROR + "mine.py: f gives 'int'"),
        ("def f(n):\n    return n\n", "mine.py:f", ERROR + ".*be built.*'n'.*without arguments"),
        (NET + "example_inputs = torch.ones(1, 5)\n", "mine.py:Net",
         ERROR + "mine.py:11: forward.. fails on its inputs.*1x5 and 4x2"),
        (NET + "example_inputs = (torch.ones(1, 4), 2)\n", "mine.py:Net",
         ERROR + "mine.py:10: forward.. fails.*TypeError"),
        (NET + "\n\ndef get_example_inputs():\n    raise OSError('no data')\n", "mine.py:Net",
         ERROR + "mine.py:15: example inputs cannot be made.*no data"),
    ],
)  # fmt: skip
def test_each_way_to_fail_has_one_clear_line(write, text, spec, words):
    write(text)
    assert re.match(words, problem(wb.load_model, spec))


@pytest.mark.parametrize("name", ["get_example_kwargs", "get_example_kwarg_inputs"])
def test_example_keyword_arguments_are_found(write, name):
    write(
        NET.replace("(self, x)", "(self, x, mask=None)")
        + "example_inputs = torch.ones(1, 4)\n"
        + f"def {name}():\n    return {{'mask': torch.ones(1)}}\n"
    )
    assert set(wb.load_model("mine.py:Net").kwargs) == {"mask"}


def test_code_that_no_inputs_cure_gets_no_hint_to_check_them(write):
    write(NET.replace("return ", "return self.gone + ") + "example_inputs = torch.ones(1, 4)\n")
    line = problem(wb.load_model, "mine.py:Net")
    assert "AttributeError" in line and "check its inputs" not in line


@pytest.mark.whole
def test_the_command_that_installs_works_in_an_activated_environment(monkeypatch):
    """Which has no pip if a pip outside made it."""
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    *command, package = shlex.split(wb.WorkbenchError("is missing", install="gone").hint)
    assert package == "gone"
    assert subprocess.run([*command, "--help"], stdout=subprocess.DEVNULL).returncode == 0


# Models of libraries

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
        return ["alexnet", "untrained", "resnet18"]

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
    model = wb.load_model(spec)
    assert model.name == spec.replace(":", "_")
    assert tuple(model.example_inputs[0].shape) == (1, 3, *size)
    assert not model.module.training


@pytest.mark.cases
def test_a_library_model_is_exported_and_kept(libraries):
    told = []
    program, again = (
        wb.export_model(
            "timm:repvit_m1",
            options=wb.ExportOptions(backend="portable"),
            progress=lambda text, fraction: told.append(text),
        )
        for _ in range(2)
    )
    assert str(program.path) == "out_timm_repvit_m1/artifacts/timm_repvit_m1_portable_fp32.pte"
    assert [tuple(x.shape) for x in saved_inputs(program)] == [(1, 3, 20, 24)]
    assert again.path == program.path
    assert told[-1] == f"{program.path.name}: up to date"
    assert not any("up to date" in line for line in told[:-1])


def test_an_unknown_name_shows_similar_ones(libraries):
    line = problem(wb.load_model, "timm:repvit_m3")
    assert "timm: no model 'repvit_m3' among its 2 -> " in line
    assert "repvit_m2" in line


@pytest.mark.parametrize("library", ["timm", "torchvision"])
@pytest.mark.parametrize("build", ["", "+cpu"])
def test_a_missing_library_comes_with_the_line_that_installs_it(library, build, monkeypatch):
    """PyPI's torchvision does not load beside a CPU build of PyTorch, and pip thinks it does."""
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.setattr("importlib.metadata.version", lambda name: f"2.13.0{build}")
    line = problem(wb.load_model, f"{library}:net")
    assert line.startswith(f"WorkbenchError: {library}: is not installed -> ")
    assert f"torch==2.13.0{build}" in line
    same_build = "--index-url https://download.pytorch.org/whl/cpu torchvision"
    assert (same_build in line) == bool(build)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import torchvision_of_no_kind", "cannot be used: No module named 'torchvision"),
        ("", "timm: cannot be used"),  # any folder may have that name
    ],
)
def test_a_broken_library_says_why(install, text, reason):
    install("timm", text)
    assert reason in problem(wb.load_model, "timm:net")


# A package of models as the profiling kit has one, and the definitions in ExecuTorch's wheel

KIT_MODEL = """\
    import torch
    from ..base import EagerModelBase
    from .sizes import WIDTH

    class Tiny(EagerModelBase):
        def get_eager_model(self):
            return torch.nn.Linear(4, WIDTH)

        def get_example_inputs(self):
            return (torch.ones(1, 4),)
"""


@pytest.mark.parametrize("is_package", [True, False])
@pytest.mark.parametrize(
    "spec", ["models/tiny/model.py:Tiny", "models/tiny:Tiny", "models/tiny", "models/tiny/model.py"]
)
def test_a_model_in_a_package_may_import_relatively(write, spec, is_package):
    before = set(sys.modules)
    for width in (2, 3):  # a second load sees the changed files
        write("class EagerModelBase: pass\n", "models/base.py")
        write(f"WIDTH = {width}\n", "models/tiny/sizes.py")
        write(KIT_MODEL, "models/tiny/model.py")
        named = ":" in spec
        write("from .model import Tiny\nfrom .. import base\n" * named, "models/tiny/__init__.py")
        if is_package:
            write("from . import tiny\n", "models/__init__.py")
        model = wb.load_model(spec)
        assert (model.module.out_features, model.name) == (width, "Tiny")
    assert not [n for n in sys.modules.keys() - before if n.startswith(("models", "model_file"))]


def test_a_folder_of_two_models_needs_a_name(write):
    write("", "models/tiny/__init__.py")
    write(KIT_MODEL, "models/tiny/model.py")
    write(KIT_MODEL.replace("Tiny", "Small"), "models/tiny/small.py")
    assert "no model named" in problem(wb.load_model, "models/tiny")


def test_a_name_of_upstream_is_known_with_and_without_its_prefix():
    for spec in ("executorch:resnet8", "resnet8"):
        model = wb.load_model(spec)
        assert model.name == spec.replace(":", "_")
        assert tuple(model.example_inputs[0].shape) == (1, 3, 32, 32)
    assert "did you mean 'resnet8'" in problem(wb.load_model, "executorch:resnt8")


@pytest.fixture
def sketch(monkeypatch):
    """Define upstream's model ``sketch`` by the function that makes it."""
    from executorch.examples import models

    def define(make):
        kind = {"get_eager_model": lambda self: make(),
                "get_example_inputs": lambda self: (torch.ones(1, 4),)}  # fmt: skip
        module = types.ModuleType("executorch.examples.models.sketch")
        module.Sketch = type("Sketch", (), kind)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setitem(models.MODEL_NAME_TO_MODEL, "sketch", ("sketch", "Sketch"))

    return define


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            "__import__('urllib.request').request.urlopen('http://weights.invalid/x')",
            "has to be downloaded from weights.invalid -> fetch it once: python -c",
        ),
        ("import torchsr_of_no_kind", "needs torchsr_of_no_kind -> "),
        ("import executorch.examples.models.gone", "is not in the installed wheel"),
        ("raise RuntimeError('broken')", "cannot be built: RuntimeError: broken"),
    ],
)
def test_an_upstream_model_that_lacks_something_says_what(sketch, body, words):
    sketch(lambda: exec(body))
    resolve = socket.getaddrinfo
    assert words in problem(wb.load_model, "executorch:sketch")
    assert socket.getaddrinfo is resolve


# The adapters in data/adapters; a small stand-in replaces the clone

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
    model = wb.load_model(f"{ADAPTER}:EdgeTam")
    assert model.module.model.conv.bias.tolist() == [5, 6]
    assert tuple(model.example_inputs[0].shape) == (1, 3, 1024, 1024)
    features, means = model.module(model.example_inputs[0] * 0 + 0.485)
    assert features.shape == (1, 2, 64, 64)
    assert means[0].tolist() == pytest.approx([0, (0.485 - 0.456) / 0.224, (0.485 - 0.406) / 0.225])


@pytest.mark.parametrize("missing", ["checkpoints/edgetam.pt", "sam2"])
def test_edgetam_says_what_is_missing_in_one_line(clone, missing):
    path = clone / missing
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    line = problem(wb.load_model, f"{ADAPTER}:EdgeTam")
    assert re.match(rf"WorkbenchError: EdgeTAM/{missing}.*: no such file -> clone", line)


# Several threads


class Overlap:
    """Where two threads meet if nothing keeps them apart; the first to come leaves first."""

    def __init__(self):
        self.barrier, self.numbers = threading.Barrier(2), itertools.count()

    def meet(self):
        number = next(self.numbers)
        with contextlib.suppress(threading.BrokenBarrierError):
            self.barrier.wait(0.5)
        time.sleep(0.2 * number)


def run_twice(call):
    """Run a call in two threads at once; returns the texts of errors."""
    errors = []

    def run():
        try:
            call()
        except Exception as error:
            errors.append(str(error))

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def test_overlapping_loads_leave_the_network_imports_and_random_numbers_as_they_were(
    monkeypatch, write, sketch
):
    overlap = Overlap()
    sketch(lambda: overlap.meet() or nn.Linear(4, 2))
    resolve, bytecode = socket.getaddrinfo, sys.dont_write_bytecode
    assert run_twice(lambda: wb.load_model("executorch:sketch")) == []
    assert socket.getaddrinfo is resolve

    monkeypatch.setattr(sys, "overlap", Overlap(), raising=False)
    file = write(f"import sys\nsys.overlap.meet()\n{NET}\nEXAMPLE_INPUTS = (torch.randn(1, 4),)\n")
    weights = []
    assert run_twice(lambda: weights.append(wb.load_model(f"{file}:Net").module.fc.weight)) == []
    assert torch.equal(*weights)
    assert sys.dont_write_bytecode is bytecode


def test_overlapping_exports_leave_standard_error_and_logs_as_they_were(tmp_path):
    overlap, exporting = Overlap(), threading.Event()

    class Net(nn.Linear):
        def forward(self, x):
            if exporting.is_set():
                overlap.meet()
                raise ValueError("enough")
            return super().forward(x)

    @wb.register_model("overlapping")
    class Overlapping(wb.EagerModelBase):
        def get_eager_model(self):
            return Net(4, 2)

        def get_example_inputs(self):
            return (torch.ones(1, 4),)

    def state():
        return sys.stderr, os.fstat(2), logging.root.manager.disable, list(warnings.filters)

    model, before = wb.load_model("overlapping"), state()
    exporting.set()
    quiet = {"root": tmp_path, "progress": lambda text, fraction: None}
    errors = run_twice(lambda: wb.export_model(model, **quiet))
    assert ["torch.export: ValueError: enough" in text for text in errors] == [True, True]
    assert state() == before
