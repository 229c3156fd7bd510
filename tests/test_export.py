import itertools
import json
import logging
import subprocess
import sys
import textwrap
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import workbench as wb
from workbench import store
from workbench.analysis.memory import list_file_parts
from workbench.errors import ExportError, ModelError, UsageError
from workbench.export.artifact import export_model
from workbench.export.layers import describe_pte
from workbench.export.precision import BACKENDS, DTYPES
from workbench.export.program import bind_constants, raw_bytes
from workbench.models.loader import LoadedModel, load_model
from workbench.options import ExportOptions

TOLERANCE = {"fp32": 1e-4, "fp16": 2e-2}
TRIED = tuple(TOLERANCE)


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


class Small(nn.Module):
    """Delegated convolutions around an operator that XNNPACK does not take."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.fc = nn.Linear(8, 4)

    def forward(self, x):
        return self.fc(self.conv(x).relu().mean(dim=(2, 3)))


def small_model(**changes):
    torch.manual_seed(1)
    fields = {"module": Small(), "example_inputs": (torch.randn(1, 3, 8, 8),)}
    return LoadedModel("small", **fields | changes)


def saved_inputs(pte):
    """The inputs that lie beside a program, as the tensors that it takes."""
    tensors = []
    for tensor in wb.open_program(pte).export.inputs:
        data = np.fromfile(pte.parent / tensor.file, dtype=tensor.dtype)
        tensors.append(torch.from_numpy(data).reshape(tensor.shape))
    return tensors


def run_program(pte, inputs):
    from executorch.extension.pybindings.portable_lib import _load_for_executorch

    return _load_for_executorch(str(pte)).run_method("forward", inputs)


def assert_agrees(model, pte):
    """Compare the program on its saved inputs with the eager fp32 model on the original ones."""
    export = wb.open_program(pte).export
    with torch.no_grad():
        expected = model.module(*model.example_inputs)
    (output,) = run_program(pte, saved_inputs(pte))
    assert (
        str(output.dtype) == f"torch.{export.outputs[0].dtype}" == f"torch.{DTYPES[export.dtype]}"
    )
    assert tuple(output.shape) == export.outputs[0].shape
    error = (output.float() - expected).abs().max() / expected.abs().max()
    assert error < TOLERANCE[export.dtype]


def files_below(folder):
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """The toy model and its programs in both dtypes, exported once."""
    model = load_model("toy_cnn")
    root = tmp_path_factory.mktemp("toy")
    return model, {
        dtype: export_model(model, ExportOptions(dtype=dtype), root=root).path for dtype in TRIED
    }


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write a file of the user's into the working directory; returns its name."""
    monkeypatch.chdir(tmp_path)

    def write_file(text):
        (tmp_path / "mine.py").write_text(textwrap.dedent(text))
        return "mine.py"

    return write_file


@pytest.mark.parametrize("dtype", TRIED)
def test_the_program_computes_what_the_model_does(toy, dtype):
    model, programs = toy
    assert_agrees(model, programs[dtype])


@pytest.mark.parametrize("dtype", TRIED)
def test_the_record_describes_what_lies_there(toy, dtype):
    pte = toy[1][dtype]
    export = wb.open_program(pte).export  # also compares the SHA-256
    assert pte.name == export.pte == f"toy_cnn_xnnpack_{dtype}.pte"
    assert files_below(pte.parent) == sorted(
        f"toy_cnn_xnnpack_{each}.pte{suffix}"
        for each in TRIED
        for suffix in ("", ".etrecord", ".export.json", ".input0.bin", ".layers.json")
    )
    assert (export.model, export.dtype, export.backend) == ("toy_cnn", dtype, "xnnpack")
    assert export.size_bytes == pte.stat().st_size
    assert export.source == "workbench.models.zoo.toy_cnn"
    assert export.versions.keys() == {"python", "torch", "executorch", "torchao", "workbench"}
    assert export.seconds > 0
    (tensor,) = export.inputs
    assert (tensor.dtype, tensor.shape) == (DTYPES[dtype], (1, 3, 224, 224))
    assert store.sha256_of(pte.parent / tensor.file) == tensor.sha256
    assert export.delegates == {"XnnpackBackend": 2}
    assert [(u.operator, u.count) for u in export.undelegated] == [("aten::mean.out", 1)]


def test_the_etrecord_is_readable(toy):
    from executorch.devtools.etrecord import parse_etrecord

    pte = toy[1]["fp32"]
    record = parse_etrecord(str(pte.parent / wb.open_program(pte).export.etrecord))
    assert record.edge_dialect_program is not None
    assert record._debug_handle_map


@pytest.mark.parametrize("dtype", TRIED)
def test_the_sidecar_knows_the_layer_of_every_operator(toy, dtype):
    pte = toy[1][dtype]
    export = wb.open_program(pte).export
    assert export.layers == store.layers_path(pte).name
    layers = store.load_layers(store.layers_path(pte), export.sha256)
    (method,) = layers.methods
    assert method.modules["conv4"] == "Conv2d"
    origins = method.origins
    backbone, mean, head = method.instructions
    convs = [node for node in backbone.xnodes if node.type == "Conv2d"]
    assert [origins[node.origins[0]].module for node in convs] == [f"conv{n}" for n in range(1, 5)]
    assert [origins[node.absorbed[0]].module for node in convs] == ["act"] * 4
    assert origins[mean.origin].source.startswith("workbench/models/zoo/toy_cnn.py:")
    assert [origins[node.origins[0]].module_class for node in head.xnodes] == ["Linear"]
    layouts = [node for node in backbone.xnodes if node.role == "layout"]
    assert [backbone.xnodes[node.borrows] for node in layouts] == [convs[0], convs[-1]]
    assert [node.flops for node in convs][1] == 2 * 112 * 112 * 64 * 32 * 9
    read = method.values[backbone.inputs[0]]
    assert (read.shape, read.arena, read.offset is not None) == ((1, 3, 224, 224), 1, True)
    assert method.arena_bytes[0] >= read.size_bytes + read.offset


def test_the_sidecar_of_a_foreign_program_is_the_same_without_layers(toy):
    pte = toy[1]["fp32"]
    layers = store.load_layers(store.layers_path(pte), store.sha256_of(pte))
    bare = describe_pte(pte.read_bytes(), pte)
    (known,), (found,) = layers.methods, bare.methods
    assert (found.values, found.arena_bytes) == (known.values, known.arena_bytes)
    for here, there in zip(found.instructions, known.instructions, strict=True):
        assert here == replace(
            there,
            origin=None,
            xnodes=tuple(replace(n, origins=(), absorbed=(), borrows=None) for n in there.xnodes),
        )


@pytest.mark.slow
@pytest.mark.parametrize("dtype", TRIED)
def test_mobilenet_computes_what_the_model_does(dtype, tmp_path):
    model = load_model("mobilenet_v3_small")
    pte = export_model(model, ExportOptions(dtype=dtype), root=tmp_path).path
    assert_agrees(model, pte)
    export = wb.open_program(pte).export
    assert export.delegates == {"XnnpackBackend": 1}
    assert export.undelegated == ()
    assert export.options == {"rewritten": "9 hardsigmoid"}


def test_portable_programs_have_no_delegate(tmp_path):
    from executorch.extension.pybindings.portable_lib import _get_operator_names

    model = small_model()
    pte = export_model(model, ExportOptions(backend="portable"), root=tmp_path).path
    assert_agrees(model, pte)
    export = wb.open_program(pte).export
    assert pte.name == "small_portable_fp32.pte"
    layers = store.load_layers(store.layers_path(pte), export.sha256)
    parts = list_file_parts(layers)
    weights = parts[parts["part"] == "weights"]
    assert weights["module"].all() and len(weights) > 1
    assert parts["size_bytes"].sum() == pte.stat().st_size
    lost = tuple(replace(part, method=7, instruction=9) for part in layers.file)
    assert set(list_file_parts(replace(layers, file=lost))["module"]) == {""}
    assert export.delegates == {}
    calls = {u.operator: u.count for u in export.undelegated}
    assert calls["aten::convolution.out"] == calls["aten::mean.out"] == 1
    assert calls.keys() <= set(_get_operator_names())


def test_the_model_stays_as_it_is(tmp_path):
    model = small_model()
    model.module.train()
    before = {name: value.clone() for name, value in model.module.state_dict().items()}
    export_model(model, ExportOptions(dtype="fp16", backend="portable"), root=tmp_path)
    assert model.module.training
    assert model.example_inputs[0].dtype == torch.float32
    for name, value in model.module.state_dict().items():
        assert torch.equal(value, before[name])


@pytest.mark.slow
def test_the_same_model_gives_the_same_program(toy, tmp_path):
    again = export_model("toy_cnn", root=tmp_path).path
    assert again.read_bytes() == toy[1]["fp32"].read_bytes()


def test_a_loaded_model_is_exported_below_the_working_directory(write, tmp_path):
    file = write("""\
        import torch
        net = torch.nn.Linear(4, 2)
        example_inputs = torch.ones(1, 4)
        """)
    pte = export_model(f"{file}:net").path
    assert str(pte) == "out_net/artifacts/net_xnnpack_fp32.pte"
    assert wb.open_program(pte).export.source == "mine.py"


# Inputs


class Picky(nn.Module):
    """Takes tensors of several kinds, nested ones, and constants."""

    def forward(self, x, times, flag, nothing=None, *, pair, mask, scale=1.0):
        y = x * times * scale + pair["a"][0]
        return (y if flag else -y), pair["a"][1] + mask


def test_constants_are_bound_and_every_saved_input_is_the_programs(tmp_path):
    x = torch.randn(1, 3, 4, 5).to(memory_format=torch.channels_last)
    args = (x, 3, True, None)
    kwargs = {
        "mask": torch.tensor([True, False]),
        "pair": {"a": (torch.tensor([0.5]), torch.tensor([7, 8]))},
        "scale": 2.0,
    }
    model = LoadedModel("picky", Picky(), args, kwargs)
    pte = export_model(model, root=tmp_path).path
    export = wb.open_program(pte).export
    assert [(t.dtype, t.shape) for t in export.inputs] == [
        ("float32", (1, 3, 4, 5)),
        ("bool", (2,)),
        ("float32", (1,)),
        ("int64", (2,)),
    ]
    image, *others = saved_inputs(pte)
    assert image.flatten().tolist() == x.permute(0, 2, 3, 1).flatten().tolist()
    outputs = run_program(pte, [x, *others])
    for output, expected in zip(outputs, model.module(*args, **kwargs), strict=True):
        torch.testing.assert_close(output, expected)


def test_keyword_inputs_are_saved_in_the_programs_order(tmp_path):
    class Difference(nn.Module):
        def forward(self, *, a, b):
            return a - b

    kwargs = {"b": torch.ones(2), "a": torch.zeros(2)}
    pte = export_model(
        LoadedModel("difference", Difference(), (), kwargs),
        ExportOptions(backend="portable"),
        root=tmp_path,
    ).path
    (output,) = run_program(pte, saved_inputs(pte))
    assert output.tolist() == [-1, -1]


def test_a_module_that_takes_tensors_only_is_not_wrapped():
    module = Small()
    arguments = (torch.ones(1),), {"x": torch.ones(1)}
    assert bind_constants(module, *arguments) == (module, *arguments)


def test_dynamic_shapes_keep_the_size_of_the_example(tmp_path):
    shapes = ({0: torch.export.Dim("batch", min=1, max=16)},)
    model = small_model(example_inputs=(torch.randn(4, 3, 8, 8),), dynamic_shapes=shapes)
    pte = export_model(model, ExportOptions(backend="portable"), root=tmp_path).path
    (saved,) = wb.open_program(pte).export.inputs
    assert saved.shape == (4, 3, 8, 8)
    assert saved.most == (16, 3, 8, 8)
    assert saved.dims == ("batch", "", "", "")
    assert run_program(pte, saved_inputs(pte))[0].shape == (4, 4)


@pytest.mark.parametrize("dtype", ["fp32", slow("int8")])
@pytest.mark.parametrize("size", [slow(1), 7])
def test_the_program_runs_at_the_size_that_was_chosen(tmp_path, dtype, size):
    shapes = ({0: torch.export.Dim("batch", min=1, max=16)},)
    model = small_model(example_inputs=(torch.randn(4, 3, 8, 8),), dynamic_shapes=shapes)
    pte = export_model(
        model, ExportOptions(dtype=dtype, sizes=(("batch", size),)), root=tmp_path
    ).path
    export = wb.open_program(pte).export
    assert export.inputs[0].shape == (size, 3, 8, 8)
    assert export.inputs[0].dynamic
    assert export.input_source.endswith(f"at batch={size}")
    assert export.problem == ""
    assert export.fidelity[0].sqnr_db > 15
    (output,) = run_program(pte, saved_inputs(pte))
    assert output.shape == (size, 4)


@pytest.mark.slow
def test_inputs_of_a_file_are_run_and_calibrate(tmp_path):
    images = torch.rand(3, 3, 8, 8)
    np.save(tmp_path / "images.npy", images.numpy())
    inputs = (str(tmp_path / "images.npy"),)
    pte = export_model(
        small_model(), ExportOptions(dtype="int8", inputs=inputs), root=tmp_path
    ).path
    export = wb.open_program(pte).export
    assert torch.equal(saved_inputs(pte)[0], images[:1])
    assert "images.npy (SHA-256 " in export.input_source
    assert export.options["calibration"].startswith("3 batches: ")
    assert not export.inputs[0].dynamic


@given(st.integers(0, 4).flatmap(lambda n: st.permutations(range(n))), st.data())
def test_raw_bytes_lie_in_the_given_order(dim_order, data):
    shape = [data.draw(st.integers(0, 4)) for _ in dim_order]
    dtype = data.draw(st.sampled_from([torch.float32, torch.float16, torch.int64, torch.bool]))
    tensor = torch.arange(int(np.prod(shape))).reshape(shape).to(dtype)
    stored = iter(np.frombuffer(raw_bytes(tensor, tuple(dim_order)), tensor.numpy().dtype))
    for place in itertools.product(*(range(shape[d]) for d in dim_order)):
        index = [0] * len(shape)
        for dimension, position in zip(dim_order, place, strict=True):
            index[dimension] = position
        assert next(stored) == tensor[tuple(index)]
    assert next(stored, None) is None


# Failures


@pytest.mark.parametrize(
    ("options", "valid"),
    [({"dtype": "int3"}, DTYPES), ({"backend": "vulcan"}, BACKENDS)],
)
def test_unknown_names_are_refused(options, valid, tmp_path):
    with pytest.raises(UsageError) as caught:
        export_model("toy_cnn", ExportOptions(**options), root=tmp_path)
    assert all(name in str(caught.value) for name in valid)


HEADER = """\
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 1)

    def forward(self, x):
        x = self.conv(x)
        return {}


EXAMPLE_INPUTS = (torch.ones(1, 3, 8, 8),)
"""


@pytest.fixture
def twice():
    """An operator of the user's own, without a kernel in ExecuTorch."""
    library = torch.library.Library("workbench_tests", "FRAGMENT")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
    yield
    library._destroy()


@pytest.mark.parametrize(
    ("expression", "parts"),
    [
        ("x if x.sum() > 0 else -x", ["branches on a tensor's value", "torch.where"]),
        ("x.reshape(int(x.abs().sum().item()) * 0 + 4, -1)", ["uses it as a size"]),
        slow("torch.fft.fft2(x).abs()", ["aten::_fft_c2c.out", "no kernel"]),
        slow("torch.linalg.svd(x)[1]", ["aten::_linalg_svd.U", "no kernel"]),
        slow("x.sort()[0]", ["aten::sort.values", "no kernel"]),
        ("x.cumprod(1).sort()[0]", ["aten::cumprod.out, aten::sort.values", "no kernel"]),
        slow("torch.ops.workbench_tests.twice(x)", ["workbench_tests::twice", "no kernel"]),
        ("torch.from_numpy(x.detach().numpy())", ["RuntimeError", "without values"]),
    ],
)
def test_failures_name_operator_and_line(write, tmp_path, capfd, twice, expression, parts):
    file = write(HEADER.format(expression))
    with pytest.raises(ExportError) as caught:
        export_model(f"{file}:Net")
    text = str(caught.value)
    assert text.startswith("mine.py:11: ")
    assert " -> " in text
    assert "\n" not in text
    for part in parts:
        assert part in text
    assert files_below(tmp_path) == ["mine.py"]
    assert "def forward" not in capfd.readouterr().err  # torch.export prints its graph there


def test_a_wrong_number_of_inputs_is_refused(tmp_path):
    image = torch.ones(1, 3, 8, 8)
    with pytest.raises(
        ExportError,
        match=r"test_export.py:\d+: forward\(\) fails: TypeError.*check the example inputs",
    ):
        export_model(small_model(example_inputs=(image, image)), root=tmp_path)
    assert files_below(tmp_path) == []


def test_wrong_dynamic_shapes_are_refused(tmp_path):
    class Fixed(nn.Module):
        def forward(self, x):
            return x.reshape(2, 8)

    shapes = ({0: torch.export.Dim("batch", min=2, max=16)},)
    model = LoadedModel("fixed", Fixed(), (torch.ones(4, 4),), dynamic_shapes=shapes)
    with pytest.raises(ExportError, match=r"test_export.py:\d+: .*batch.*get_dynamic_shapes"):
        export_model(model, root=tmp_path)


def test_a_model_that_fails_in_half_precision_only_says_where(write, tmp_path):
    file = write("""\
        import torch


        class Net(torch.nn.Module):
            def forward(self, x):
                return x @ torch.ones(4, 4)


        EXAMPLE_INPUTS = (torch.ones(1, 4),)
        """)
    export_model(f"{file}:Net", ExportOptions(backend="portable"))
    with pytest.raises(
        ExportError, match=r"^mine.py:6: in fp16 this is a matmul of float16 and float32 -> "
    ):
        export_model(f"{file}:Net", ExportOptions(dtype="fp16"))


STAGES = {
    "loading mine.py:Net",
    "running the PyTorch model",
    "exporting in fp32",
    "lowering to xnnpack",
}
DYNAMIC = """

def get_dynamic_shapes():
    return ({0: torch.export.Dim("batch", min=1, max=8)},)
"""


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        (HEADER.format("torch.fft.fft2(x).abs()"), ["mine.py:11: ", "no kernel for aten::_fft"]),
        (HEADER.format("x if x.sum() > 0 else -x"), ["mine.py:11: ", "branches on a tensor's"]),
        (HEADER.format("x.reshape(4, -1)[:4]") + DYNAMIC, ["mine.py:", "batch", "get_dynamic_sh"]),
        (HEADER.format("x").replace("self, x", "self, x, y"), ["mine.py:9: ", "missing", "inputs"]),
    ],
    ids=["operator", "control flow", "dynamic shape", "input count"],
)
def test_each_failure_is_one_line_and_leaves_nothing(write, tmp_path, capfd, source, parts):
    from workbench.cli import main

    file = write(source)
    with pytest.raises(SystemExit) as ended:
        main(["export", f"{file}:Net"])
    assert ended.value.code == 1
    out, err = capfd.readouterr()
    assert out == ""
    *stages, error = err.splitlines()
    assert {stage.partition(" s  ")[2] for stage in stages} <= STAGES, err
    assert error.startswith("error: ")
    assert " -> " in error
    for part in parts:
        assert part in error
    assert files_below(tmp_path) == ["mine.py"]


def test_a_failed_export_leaves_the_last_good_one(write):
    good = "import torch\nnet = torch.nn.ReLU()\nexample_inputs = torch.ones(4)\n"
    file = write(good)
    pte = export_model(f"{file}:net", ExportOptions(backend="portable")).path
    before = {name: (pte.parent / name).read_bytes() for name in files_below(pte.parent)}
    write(good.replace("torch.nn.ReLU()", "lambda x: x.sort()[0]"))
    with pytest.raises(ModelError):
        export_model(f"{file}:net", ExportOptions(backend="portable"))
    assert {name: (pte.parent / name).read_bytes() for name in files_below(pte.parent)} == before
    assert wb.open_program(pte).export is not None


def test_an_interrupted_export_leaves_no_record(tmp_path, monkeypatch):
    pte = export_model(small_model(), ExportOptions(backend="portable"), root=tmp_path).path
    atomic_write = store.atomic_write

    def interrupted(path, content):
        if path.suffix == ".pte":
            raise KeyboardInterrupt
        return atomic_write(path, content)

    monkeypatch.setattr(store, "atomic_write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        export_model(small_model(), ExportOptions(backend="portable"), root=tmp_path)
    assert not store.export_record_path(pte).exists()


def test_a_graph_that_cannot_be_serialised_has_no_etrecord(tmp_path):
    class Scaled(nn.Module):
        def forward(self, x):
            return x * x.sum().item()

    arguments = (torch.ones(3),)
    stale = tmp_path / "artifacts" / "scaled_portable_fp32.pte.etrecord"
    store.atomic_write(stale, "of an earlier export")
    with pytest.warns(UserWarning, match="no ETRecord"):
        pte = export_model(
            LoadedModel("scaled", Scaled(), arguments),
            ExportOptions(backend="portable"),
            root=tmp_path,
        ).path
    assert wb.open_program(pte).export.etrecord == ""
    assert not stale.exists()
    assert run_program(pte, list(arguments))[0].tolist() == [3, 3, 3]


# Silence


@pytest.mark.slow
def test_an_export_prints_only_what_the_model_does(write, tmp_path):
    file = write("""\
        import torch


        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = torch.nn.Linear(4, 4)

            def forward(self, x):
                print("hello from the model")
                return torch.nn.functional.hardswish(self.fc(x))


        EXAMPLE_INPUTS = (torch.ones(1, 4),)
        """)
    code = f"import workbench as wb; wb.export_model('{file}:Net', wb.ExportOptions(dtype='fp16'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.splitlines()) == {"hello from the model"}
    assert done.stderr == ""
    (record,) = tmp_path.rglob("*.export.json")
    assert json.loads(record.read_text())["dtype"] == "fp16"


def test_warnings_and_logging_are_put_back(tmp_path):
    logging.disable(logging.DEBUG)
    filters = list(warnings.filters)
    try:
        export_model(small_model(), ExportOptions(backend="portable"), root=tmp_path)
        assert logging.root.manager.disable == logging.DEBUG
        assert list(warnings.filters) == filters
    finally:
        logging.disable(logging.NOTSET)


def test_importing_the_exporter_does_not_import_torch():
    code = "import sys, workbench.export.artifact; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
