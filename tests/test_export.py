import functools
import gc
import json
import logging
import os
import shutil
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from exporting import make_model, problem, run_program, saved_inputs, slow
from needed import needs
from torch import nn

import workbench as wb

DTYPES = {"fp32": "float32", "fp16": "float16"}
TOLERANCE = {"fp32": 1e-4, "fp16": 2e-2}


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
    fields = {"module": Small(), "inputs": (torch.randn(1, 3, 8, 8),)}
    return make_model("small", **fields | changes)


def assert_agrees(model, program):
    """Compare the program on its saved inputs with the eager fp32 model on the original ones."""
    export = program.export
    with torch.no_grad():
        expected = model.module(*model.example_inputs)
    (output,) = run_program(program, saved_inputs(program))
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
    """The toy model, and its program in a dtype, exported once into a folder of its own."""
    model, folder = wb.load_model("toy_cnn"), tmp_path_factory.mktemp("toy")

    def export(dtype):
        return wb.export_model(model, options=wb.ExportOptions(dtype=dtype), root=folder / dtype)

    return model, functools.cache(export)


tried = pytest.mark.parametrize("dtype", ["fp32", slow("fp16")])


@tried
def test_the_program_computes_what_the_model_does(toy, dtype):
    model, export = toy
    assert_agrees(model, export(dtype))


@tried
def test_the_record_describes_what_lies_there(toy, dtype):
    program = toy[1](dtype)
    export = wb.open_program(program.path).export  # also compares the SHA-256
    assert program.path.name == export.pte == f"toy_cnn_xnnpack_{dtype}.pte"
    assert files_below(program.path.parent) == sorted(
        f"{program.path.name}{suffix}"
        for suffix in ("", ".export.json", ".input0.bin", ".layers.json")
    )
    assert (export.model, export.dtype, export.backend) == ("toy_cnn", dtype, "xnnpack")
    assert export.size_bytes == program.path.stat().st_size
    written = sum(path.stat().st_size for path in program.path.parent.iterdir())
    assert (
        written - (program.path.parent / export.inputs[0].file).stat().st_size
        <= 2 * export.size_bytes
    )
    assert export.source.endswith("zoo.toy_cnn")
    assert export.versions.keys() == {"python", "torch", "executorch", "torchao", "workbench"}
    assert export.seconds > 0
    (tensor,) = export.inputs
    assert (tensor.dtype, tensor.shape) == (DTYPES[dtype], (1, 3, 224, 224))
    assert export.delegates == {"XnnpackBackend": 2}
    assert [(u.operator, u.count) for u in export.undelegated] == [("aten::mean.out", 1)]


@pytest.mark.whole
def test_what_was_exported_is_freed(tmp_path):
    """Caches of ExecuTorch and PyTorch keep no graph."""
    kind = torch.export.ExportedProgram
    # isinstance() would ask a proxy for what may be gone.
    before = {id(each) for each in gc.get_objects() if issubclass(type(each), kind)}
    module = nn.Sequential(nn.Conv2d(4, 8, 1), nn.Flatten(), nn.LayerNorm(128), nn.Linear(128, 8))
    wb.export_model(module, torch.ones(1, 4, 4, 4), root=tmp_path)
    gc.collect()
    after = [each for each in gc.get_objects() if issubclass(type(each), kind)]
    assert not [each for each in after if id(each) not in before]


@pytest.mark.whole
def test_an_etrecord_is_written_if_wanted_and_then_stays(toy, tmp_path):
    from executorch.devtools.etrecord import parse_etrecord

    model, export = toy
    shutil.copytree(export("fp32").path.parent, tmp_path / "artifacts")
    wanted = wb.ExportOptions(etrecord=True)
    program = wb.export_model(model, options=wanted, root=tmp_path)
    assert program.sha256 == export("fp32").sha256
    path = program.path.with_name(f"{program.path.name}.etrecord")
    record = parse_etrecord(str(path))
    assert record.edge_dialect_program is not None
    assert record._debug_handle_map
    written = path.stat().st_mtime_ns
    for options in (wanted, wb.ExportOptions()):
        again = wb.export_model(model, options=options, root=tmp_path)
        assert again.export.etrecord == path.name
        assert path.stat().st_mtime_ns == written


@tried
def test_the_sidecar_knows_the_layer_of_every_operator(toy, dtype):
    program = toy[1](dtype)
    assert program.export.layers == f"{program.path.name}.layers.json"
    (method,) = program.layers.methods
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
    assert read.shape == (1, 3, 224, 224)


@pytest.mark.cases
@needs("zoo", "remedies")
@pytest.mark.parametrize("dtype", DTYPES)
def test_mobilenet_computes_what_the_model_does(dtype, tmp_path):
    model = wb.load_model("mobilenet_v3_small")
    options = wb.ExportOptions(dtype=dtype, rewrite=("hardsigmoid",))
    program = wb.export_model(model, options=options, root=tmp_path)
    assert_agrees(model, program)
    export = program.export
    assert export.delegates == {"XnnpackBackend": 1}
    assert export.undelegated == ()
    assert export.options == {"rewritten": "9 hardsigmoid"}


def test_portable_programs_have_no_delegate_and_nothing_else_changes(tmp_path):
    from executorch.extension.pybindings.portable_lib import _get_operator_names

    model = small_model()
    model.module.train()
    weights = {name: value.clone() for name, value in model.module.state_dict().items()}
    filters, level = list(warnings.filters), logging.root.manager.disable
    program = wb.export_model(model, options=wb.ExportOptions(backend="portable"), root=tmp_path)
    assert model.module.training
    assert (list(warnings.filters), logging.root.manager.disable) == (filters, level)
    for name, value in model.module.state_dict().items():
        assert torch.equal(value, weights[name])
    assert_agrees(model, program)
    export = program.export
    assert program.path.name == "small_portable_fp32.pte"
    assert export.delegates == {}
    calls = {u.operator: u.count for u in export.undelegated}
    assert calls["aten::convolution.out"] == calls["aten::mean.out"] == 1
    assert calls.keys() <= set(_get_operator_names())


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
    model = make_model("picky", Picky(), args, kwargs)
    program = wb.export_model(model, root=tmp_path)
    export = program.export
    assert [(t.dtype, t.shape) for t in export.inputs] == [
        ("float32", (1, 3, 4, 5)),
        ("bool", (2,)),
        ("float32", (1,)),
        ("int64", (2,)),
    ]
    image, *others = saved_inputs(program)
    assert image.flatten().tolist() == x.permute(0, 2, 3, 1).flatten().tolist()
    outputs = run_program(program, [x, *others])
    for output, expected in zip(outputs, model.module(*args, **kwargs), strict=True):
        torch.testing.assert_close(output, expected)


@pytest.mark.cases
def test_dynamic_shapes_keep_the_size_of_the_example(tmp_path):
    shapes = ({0: torch.export.Dim("batch", min=1, max=16)},)
    model = small_model(inputs=(torch.randn(4, 3, 8, 8),), dynamic_shapes=shapes)
    program = wb.export_model(model, options=wb.ExportOptions(backend="portable"), root=tmp_path)
    (saved,) = program.export.inputs
    assert saved.shape == (4, 3, 8, 8)
    assert saved.most == (16, 3, 8, 8)
    assert saved.dims == ("batch", "", "", "")
    assert run_program(program, saved_inputs(program))[0].shape == (4, 4)


@pytest.mark.cases
@pytest.mark.whole
def test_a_dynamic_batch_is_as_large_as_declared_although_the_example_is_small(tmp_path):
    """PyTorch would use other libraries for 16 images and more, which set no limit."""
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 4)).eval()
    shapes, sizes = {"input": {0: torch.export.Dim("batch", max=64)}}, (("batch", 64),)
    model = make_model("net", module, (torch.randn(4, 3, 8, 8),), dynamic_shapes=shapes)
    words = "--rewrite batch may avoid it"
    assert words in problem(
        wb.export_model, model, options=wb.ExportOptions(sizes=sizes), root=tmp_path
    )
    small = wb.export_model(model, root=tmp_path).export
    limit = "batch is at most 15 in the program, declared up to 64: --rewrite batch keeps that"
    assert small.differences == (limit,)
    options = wb.ExportOptions(sizes=sizes, rewrite=("batch",))
    program = wb.export_model(model, options=options, root=tmp_path)
    assert program.export.differences == ()
    (saved,) = program.export.inputs
    assert (saved.shape[0], saved.most[0], program.export.problem) == (64, 64, "")
    assert torch.backends.mkldnn.is_available() == torch.backends.mkldnn.enabled


def test_a_computed_size_has_the_line_and_the_layer_that_reads_it(tmp_path):
    class Halves(nn.Module):
        def forward(self, x):
            y = x.cos()
            return y.view(2 * x.shape[0], -1)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.halves = Halves()

        def forward(self, x):
            return self.halves(x)

    shapes = ({0: torch.export.Dim("batch", max=16)},)
    model = make_model("net", Net(), (torch.randn(2, 8),), dynamic_shapes=shapes)
    program = wb.export_model(model, root=tmp_path)
    rows = {row.operator: row for row in program.export.partition}
    assert rows["aten.view_copy"].reason == "a size that is known only at run time"
    assert rows["sym_size.int"].source == rows["aten.view_copy"].source
    assert "test_export.py:" in rows["sym_size.int"].source
    (method,) = program.layers.methods
    sizes = [call for call in method.instructions if call.name == "aten::sym_size.int"]
    origins = [method.origins[call.origin] for call in sizes]
    assert [(origin.module, origin.module_class) for origin in origins] == [("halves", "Halves")]


@pytest.mark.parametrize(
    ("parts", "difference"),
    [
        ([torch.half], "the model is in float16, the program in float32: --dtype fp16 keeps it"),
        slow(
            [torch.bfloat16], "the model is in bfloat16, the program in float32: --dtype bf16 keeps"
        ),
        ([torch.half, torch.float], "parts of the model are in float16, the program in float32"),
        ([torch.float, torch.double], ""),
    ],
)
def test_a_model_in_half_precision_that_becomes_single(tmp_path, parts, difference):
    class Layer(nn.Linear):
        def forward(self, x):
            return super().forward(x.to(self.weight.dtype))

    module = nn.Sequential(*(Layer(4, 4).to(dtype) for dtype in parts))
    inputs, warnings = (torch.ones(1, 4, dtype=parts[0]),), []
    program = wb.export_model(
        make_model("net", module, inputs), root=tmp_path,
        progress=lambda text, done: warnings.append(text),
    )  # fmt: skip
    assert "; ".join(program.export.differences).startswith(difference)
    assert bool(program.export.differences) == bool(difference)
    assert not program.export.problem
    assert any(f"warning: net_xnnpack_fp32.pte: {difference}" in text for text in warnings) == bool(
        difference
    )
    if len(parts) == 1 and parts[0] == torch.half:
        options = wb.ExportOptions(dtype="fp16")
        assert wb.export_model(make_model("net", module, inputs), options=options,
                               root=tmp_path).export.differences == ()  # fmt: skip


@pytest.mark.whole
def test_attention_takes_a_dynamic_batch(tmp_path):
    class Attention(nn.Module):
        def forward(self, x):
            return nn.functional.scaled_dot_product_attention(x, x, x)

    shapes = ({0: torch.export.Dim("batch", max=16)},)
    model = make_model("net", Attention(), (torch.randn(2, 2, 8, 4),), dynamic_shapes=shapes)
    program = wb.export_model(model, root=tmp_path)
    assert (program.export.inputs[0].most[0], program.export.problem) == (16, "")


@pytest.mark.whole
@pytest.mark.parametrize("dtype", ["fp32", slow("int8")])
@pytest.mark.parametrize("size", [slow(1), 7])
def test_the_program_runs_at_the_size_that_was_chosen(tmp_path, dtype, size):
    shapes = ({0: torch.export.Dim("batch", min=1, max=16)},)
    model = small_model(inputs=(torch.randn(4, 3, 8, 8),), dynamic_shapes=shapes)
    program = wb.export_model(
        model, options=wb.ExportOptions(dtype=dtype, sizes=(("batch", size),)), root=tmp_path
    )
    export = program.export
    assert export.inputs[0].shape == (size, 3, 8, 8)
    assert export.inputs[0].dynamic
    assert export.input_source.endswith(f"at batch={size}")
    assert export.problem == ""
    assert export.fidelity[0].sqnr_db > 15
    (output,) = run_program(program, saved_inputs(program))
    assert output.shape == (size, 4)


def test_an_input_without_elements_is_taken_whatever_its_strides(tmp_path):
    """The runtime ends the process at strides that are not those of the shape."""

    class Joined(nn.Module):
        def forward(self, new, cache):
            return torch.cat((cache, new), -1) * 2

    states = torch.rand(2, 3, 8)
    program = wb.export_model(Joined(), (states, states[..., :0]), root=tmp_path)
    assert program.export.problem == ""
    assert [argument.shape for argument in program.inputs] == [(2, 3, 8), (2, 3, 0)]


@pytest.mark.cases
def test_inputs_of_a_delegate_are_listed_as_it_is_given_them(tmp_path):
    """XNNPACK numbers tensors as its operators use them: the gate before the image."""

    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.fc = nn.Conv2d(3, 8, 3), nn.Linear(8, 8)

        def forward(self, x):
            x = self.conv(x)
            return x * torch.sigmoid(self.fc(x.mean((2, 3))))[:, :, None, None]

    model = make_model("net", Gated().eval(), (torch.randn(1, 3, 8, 8),))
    options = wb.ExportOptions("int8")
    (method,) = wb.export_model(model, options=options, root=tmp_path).layers.methods
    calls = [call for call in method.instructions if call.xnodes]
    assert [len(call.inputs) for call in calls] == [1, 2]
    for call in calls:
        given = [value.shape for value in call.xvalues if value.role == "input"]
        assert given == [method.values[number].shape for number in call.inputs]


@pytest.mark.cases
def test_inputs_of_a_file_are_run_and_calibrate(tmp_path):
    images = torch.rand(3, 3, 8, 8)
    np.save(tmp_path / "images.npy", images.numpy())
    inputs = (str(tmp_path / "images.npy"),)
    program = wb.export_model(
        small_model(), options=wb.ExportOptions(dtype="int8", inputs=inputs), root=tmp_path
    )
    export = program.export
    assert torch.equal(saved_inputs(program)[0], images[:1])
    assert "images.npy (SHA-256 " in export.input_source
    assert export.options["calibration"].startswith("3 batches: ")
    assert not export.inputs[0].dynamic


# Failures


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dtype": "int3"}, "valid: 8da4c, 8da4w, bf16"),
        ({"backend": "vulcan"}, "portable, xnnpack"),
    ],
)
def test_unknown_names_are_refused(options, words, tmp_path):
    line = problem(wb.export_model, "toy_cnn", options=wb.ExportOptions(**options), root=tmp_path)
    assert line.startswith("UsageError: unknown")
    assert words in line


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
        slow("x.reshape(int(x.abs().sum().item()) * 0 + 4, -1)", ["uses it as a size"]),
        slow("torch.linalg.svd(x)[1]", ["aten::_linalg_svd.U", "no kernel"]),
        slow("x.cumprod(1).sort()[0]", ["aten::cumprod.out, aten::sort.values", "no kernel"]),
        slow("torch.linalg.inv(x + torch.eye(8))", ["aten::linalg_inv_ex", "among the core"]),
        slow("torch.ops.workbench_tests.twice(x)", ["workbench_tests::twice", "no kernel"]),
        ("torch.from_numpy(x.detach().numpy())", ["RuntimeError", "without values"]),
    ],
)
def test_failures_name_operator_and_line(write, tmp_path, capfd, twice, expression, parts):
    file = write(HEADER.format(expression))
    line = problem(wb.export_model, f"{file}:Net")
    assert line.startswith("ExportError: mine.py:11: ")
    assert " -> " in line
    for part in parts:
        assert part in line
    assert files_below(tmp_path) == ["mine.py"]
    assert "def forward" not in capfd.readouterr().err  # torch.export prints its graph there


def test_a_model_that_fails_in_half_precision_only_says_where(write):
    file = write("""\
        import torch


        class Net(torch.nn.Module):
            def forward(self, x):
                return x @ torch.ones(4, 4)


        EXAMPLE_INPUTS = (torch.ones(1, 4),)
        """)
    model = wb.load_model(f"{file}:Net")  # this runs it in single precision
    line = problem(wb.export_model, model, options=wb.ExportOptions(dtype="fp16"))
    assert "mine.py:6: in fp16 this is a matmul of float16 and float32 -> " in line


STAGES = {
    "loading mine.py:Net",
    "tracing Net",
    "importing torch",
    "importing ExecuTorch",
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
        (HEADER.format("slice(x)"), ["mine.py:9: ", "returns a <class 'slice'>", "return tensors"]),
        (HEADER.format("x").replace("self, x", "self, x, y"), ["mine.py:9: ", "missing", "inputs"]),
    ],
    ids=["operator", "control flow", "dynamic shape", "output", "input count"],
)
def test_each_failure_is_one_line_and_leaves_nothing(cli, write, tmp_path, source, parts):
    file = write(source)
    code, out, err = cli("export", f"{file}:Net")
    assert (code, out) == (1, "")
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
    program = wb.export_model(f"{file}:net", options=wb.ExportOptions(backend="portable"))
    assert str(program.path) == "out_net/artifacts/net_portable_fp32.pte"
    assert program.export.source == "mine.py"
    before = {
        name: (program.path.parent / name).read_bytes() for name in files_below(program.path.parent)
    }
    write(good.replace("torch.nn.ReLU()", "lambda x: x.sort()[0]"))
    line = problem(wb.export_model, f"{file}:net", options=wb.ExportOptions(backend="portable"))
    assert line.startswith("WorkbenchError: ")
    assert {
        name: (program.path.parent / name).read_bytes() for name in files_below(program.path.parent)
    } == before


@pytest.mark.cases
def test_an_interrupted_export_leaves_no_record(tmp_path, monkeypatch):
    program = wb.export_model(
        small_model(), options=wb.ExportOptions(backend="portable"), root=tmp_path
    )
    replace = os.replace

    def interrupted(source, target, *arguments, **options):
        if str(target).endswith(".pte"):
            raise KeyboardInterrupt
        return replace(source, target, *arguments, **options)

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        wb.export_model(small_model(), options=wb.ExportOptions(backend="portable"), root=tmp_path)
    assert f"{program.path.name}.export.json" not in files_below(tmp_path)


@pytest.mark.cases
def test_a_graph_that_cannot_be_serialised_has_no_etrecord(tmp_path, capsys):
    class Scaled(nn.Module):
        def forward(self, x):
            return x * x.sum().item()

    arguments = (torch.ones(3),)
    stale = tmp_path / "artifacts" / "scaled_portable_fp32.pte.etrecord"
    stale.parent.mkdir()
    stale.write_text("of an earlier export")
    model = make_model("scaled", Scaled(), arguments)
    options = wb.ExportOptions(backend="portable", etrecord=True)
    program = wb.export_model(model, options=options, root=tmp_path)
    assert "no ETRecord" in capsys.readouterr().err
    assert program.export.etrecord == ""
    assert not stale.exists()
    assert run_program(program, list(arguments))[0].tolist() == [3, 3, 3]


# Silence


@pytest.mark.cases
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
    export = f"wb.export_model('{file}:Net', options=wb.ExportOptions(dtype='fp16'))"
    code = f"import workbench as wb; {export}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.splitlines()) == {"hello from the model"}
    assert done.stderr == ""
    (record,) = tmp_path.rglob("*.export.json")
    assert json.loads(record.read_text())["dtype"] == "fp16"
