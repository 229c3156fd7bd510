"""Inputs from files, folders and seeds, and sizes of dynamic dimensions."""

import io
import struct
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from workbench.errors import UsageError, WorkbenchError
from workbench.models.inputs import choose_inputs
from workbench.models.loader import LoadedModel
from workbench.options import ExportOptions


def choose(model, sources=(), sizes=None, **options):
    sizes = tuple((sizes or {}).items())
    return choose_inputs(model, ExportOptions(inputs=tuple(sources), sizes=sizes, **options))


class Sum(nn.Module):
    def forward(self, x, y=None):
        return x.sum() if y is None else x.sum() + y.sum()


class Lookup(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(10, 2)

    def forward(self, tokens):
        return self.table(tokens)


IMAGE = LoadedModel("sum", Sum(), (torch.zeros(1, 3, 4, 6),))
PAIR = LoadedModel("sum", Sum(), (torch.zeros(1, 2), torch.zeros(1, 3)))
TOKENS = LoadedModel("lookup", Lookup(), (torch.tensor([[1, 2, 9]]),))


def save(path, value):
    if path.suffix == ".npy":
        np.save(path, value.numpy())
    elif path.suffix == ".pt":
        torch.save(value, path)
    else:
        save_file({"x": value}, path)
    return str(path)


@pytest.mark.parametrize(
    "suffix", [".npy", pytest.param(".pt", marks=pytest.mark.cases), ".safetensors"]
)
def test_a_file_replaces_the_example(suffix, tmp_path):
    value = torch.rand(1, 3, 4, 6, dtype=torch.float64)
    chosen = choose(IMAGE, [save(tmp_path / f"x{suffix}", value)])
    assert torch.equal(chosen.example_inputs[0], value.float())
    assert chosen.calibration == ()
    assert f"x{suffix} (SHA-256 " in chosen.input_source
    assert torch.equal(IMAGE.example_inputs[0], torch.zeros(1, 3, 4, 6))


@pytest.mark.parametrize("shape", [(5, 3, 4, 6), (5, 1, 3, 4, 6)])
def test_several_samples_calibrate_and_the_first_is_run(shape, tmp_path):
    value = torch.rand(shape)
    chosen = choose(IMAGE, [save(tmp_path / "x.npy", value)])
    calls = [(chosen.example_inputs, chosen.kwargs), *chosen.calibration]
    assert chosen.input_source.endswith("the first of 5 samples")
    for (args, kwargs), expected in zip(calls, value, strict=True):
        assert torch.equal(args[0].reshape(3, 4, 6), expected.reshape(3, 4, 6))
        assert kwargs == {}


@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        ((1, 3, 4, 6), "folder"),
        ((3, 4, 6), "folder"),
        pytest.param((3, 4, 6), "list", marks=pytest.mark.whole),
    ],
)
def test_samples_may_be_files_of_a_folder_or_a_list(shape, layout, tmp_path):
    samples = [torch.rand(shape) for _ in range(3)]
    torch.save(samples, tmp_path / "list.pt")
    (tmp_path / "folder").mkdir()
    for number, sample in enumerate(samples):
        save(tmp_path / "folder" / f"{number}.npy", sample)
    chosen = choose(IMAGE, [str(tmp_path / layout) + (".pt" if layout == "list" else "")])
    run = [chosen.example_inputs, *(args for args, _ in chosen.calibration)]
    assert all(torch.equal(a.reshape(shape), s) for (a,), s in zip(run, samples, strict=True))
    save(tmp_path / "folder" / "9.npy", torch.rand(1, 3, 4, 5))
    with pytest.raises(UsageError, match="folder: samples of shapes"):
        choose(IMAGE, [str(tmp_path / "folder")])


def test_a_batch_is_one_sample(tmp_path):
    model = replace(IMAGE, example_inputs=(torch.zeros(2, 3, 4, 6),))
    chosen = choose(model, [save(tmp_path / "x.npy", torch.rand(6, 3, 4, 6))])
    assert len(chosen.calibration) == 2
    with pytest.raises(UsageError, match=r"x\.npy: shape \(5, 3, 4, 6\), the model takes"):
        choose(model, [save(tmp_path / "x.npy", torch.rand(5, 3, 4, 6))])


@pytest.mark.parametrize("file", ["x.safetensors", pytest.param("x.pt", marks=pytest.mark.whole)])
def test_several_tensors_of_a_file_find_their_arguments(tmp_path, file):
    x, y = torch.rand(1, 2), torch.rand(1, 3)
    save_file({"y": y, "x": x}, tmp_path / "x.safetensors")
    torch.save((x, y), tmp_path / "x.pt")
    chosen = choose(PAIR, [str(tmp_path / file)])
    assert torch.equal(chosen.example_inputs[0], x)
    assert torch.equal(chosen.example_inputs[1], y)


def test_keyword_inputs_are_filled_too(tmp_path):
    model = LoadedModel("sum", Sum(), (torch.zeros(2),), {"y": torch.zeros(3)})
    sources = [save(tmp_path / f"{n}.npy", torch.rand(4, n)) for n in (2, 3)]
    chosen = choose(model, sources)
    assert chosen.kwargs["y"].shape == (3,)
    assert [tuple(kwargs["y"].shape) for _, kwargs in chosen.calibration] == [(3,)] * 3
    assert not torch.equal(chosen.kwargs["y"], chosen.calibration[0][1]["y"])


def test_one_sample_accompanies_several(tmp_path):
    sources = [save(tmp_path / "x.npy", torch.rand(3, 2)), save(tmp_path / "y.npy", torch.rand(3))]
    with pytest.raises(UsageError, match="shape"):
        choose(PAIR, [sources[0], save(tmp_path / "z.npy", torch.rand(4))])
    chosen = choose(PAIR, [sources[0], save(tmp_path / "z.npy", torch.rand(1, 3))])
    assert len(chosen.calibration) == 2
    assert torch.equal(chosen.calibration[0][0][1], chosen.example_inputs[1])


def test_noise_depends_on_its_seed_only():
    first, again, other = (choose(PAIR, [f"random:{seed}"]).example_inputs for seed in (7, 7, 8))
    assert all(map(torch.equal, first, again))
    assert not any(map(torch.equal, first, other))
    assert 0.0 < first[0].std() < 3


def test_noise_of_integers_stays_in_the_range_of_the_example():
    tokens = replace(TOKENS, example_inputs=(torch.tensor([[1, 9] * 50]),))
    drawn = choose(tokens, ["random:1"]).example_inputs[0]
    assert drawn.dtype == torch.int64
    assert (int(drawn.min()), int(drawn.max())) == (1, 9)


def npy(header, payload=b""):
    text = header.encode().ljust(118)
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text) + 1) + text + b"\n" + payload


def pickled_code():
    buffer = io.BytesIO()
    torch.save({"x": Sum()}, buffer)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.npy", b"", "cannot be read"),
        ("a.npy", npy("{'descr': '<f4', 'fortran_order': False, 'shape': (9999999999,)}"), "read"),
        ("a.npy", npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", b"\x80"), "read"),
        pytest.param("a.pt", b"PK\x03\x04 but no more", "cannot be read", marks=pytest.mark.cases),
        pytest.param("a.pt", pickled_code(), "cannot be read", marks=pytest.mark.whole),
        ("a.safetensors", b"\xff" * 64, "cannot be read"),
        ("a.safetensors", struct.pack("<Q", 2**40) + b"{}", "cannot be read"),
        ("a.png", b"\x89PNG\r\n\x1a\n", "not a source of inputs"),
        ("a.csv", b"1,2", "not a source of inputs"),
    ],
)
def test_hostile_files_are_refused_in_one_line(name, content, said, tmp_path):
    (tmp_path / name).write_bytes(content)
    tracemalloc.start()
    with pytest.raises(UsageError, match=said) as caught:
        choose(IMAGE, [str(tmp_path / name)])
    assert tracemalloc.get_traced_memory()[1] < 50e6
    tracemalloc.stop()
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.whole
def test_a_claimed_shape_costs_nothing(tmp_path):
    torch.save(torch.zeros(1).expand(10**9, 3, 4, 6), tmp_path / "x.pt")
    with pytest.raises(UsageError, match=r"share or repeat values; save them with \.clone\(\)"):
        choose(IMAGE, [str(tmp_path / "x.pt")])


@pytest.mark.parametrize(
    ("model", "value", "said"),
    [
        (IMAGE, torch.zeros(1, 3, 4, 7), r"shape \(1, 3, 4, 7\), the model takes \(1, 3, 4, 6\)"),
        (IMAGE, torch.zeros(1, 3, 4, 6, dtype=torch.uint8), "uint8, the model takes float32"),
        (IMAGE, torch.full((1, 3, 4, 6), torch.nan), "not numbers"),
        (IMAGE, torch.full((1, 3, 4, 6), 1e300, dtype=torch.float64), "not numbers"),
        (TOKENS, torch.zeros(1, 3), "float32, the model takes int64"),
    ],
)
def test_what_does_not_fit_is_refused(model, value, said, tmp_path):
    with pytest.raises(UsageError, match=said) as caught:
        choose(model, [save(tmp_path / "x.npy", value)])
    assert str(caught.value).startswith(str(tmp_path / "x.npy"))


def test_values_that_the_model_cannot_take_point_at_its_source(tmp_path):
    with pytest.raises(WorkbenchError, match=r"forward\(\) fails on its inputs: IndexError"):
        choose(TOKENS, [save(tmp_path / "x.npy", torch.tensor([[1, 2, 10]]))])


@pytest.mark.parametrize(
    ("sources", "said"),
    [
        (["missing.npy"], "missing.npy: no such file"),
        (["random:x"], "random:x: not a source of inputs.*random:SEED"),
        (["random:1", "random:2"], None),
        (["random:1", "random:2", "random:3"], "random:3 left over; forward.. takes 2: x, y"),
        (["x.npy"], "1 tensors; forward.. takes 2: x, y"),
    ],
)
def test_sources_are_counted(sources, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.zeros((1, 2), np.float32))
    if said is None:
        assert len(choose(PAIR, sources).example_inputs) == 2
        return
    with pytest.raises(UsageError, match=said):
        choose(PAIR, sources)


# Sizes


def dynamic(shapes, **changes):
    return replace(PAIR, dynamic_shapes=shapes, **changes)


def test_a_size_repeats_or_cuts_the_example():
    batch = torch.export.Dim("batch", min=1, max=8)
    model = LoadedModel("sum", Sum(), (torch.tensor([[1.0], [2.0]]),), dynamic_shapes=({0: batch},))
    larger, smaller = (choose(model, sizes={"batch": n}) for n in (5, 1))
    assert larger.example_inputs[0].flatten().tolist() == [1, 2, 1, 2, 1]
    assert smaller.example_inputs[0].flatten().tolist() == [1]
    assert larger.traced_inputs == (model.example_inputs, {})
    assert larger.input_source.endswith("at batch=5")


@pytest.mark.parametrize("by_name", [True, False])
def test_sizes_reach_every_input_and_what_is_computed_from_them(by_name):
    rows = torch.export.Dim("rows", min=1, max=8)
    shapes = {"x": {1: rows}, "y": {1: 2 * rows + 1}}
    model = dynamic(shapes if by_name else tuple(shapes.values()))
    chosen = choose(model, sizes={"rows": 3})
    assert [tuple(x.shape) for x in chosen.example_inputs] == [(1, 3), (1, 7)]


@pytest.mark.parametrize(
    ("sizes", "said"),
    [({"bath": 2}, "unknown dynamic dimension 'bath'.*'batch'"), ({"batch": 9}, "within 2 to 8")],
)
def test_wrong_sizes_are_refused(sizes, said):
    batch = torch.export.Dim("batch", min=2, max=8)
    with pytest.raises(UsageError, match=said):
        choose(dynamic(({0: batch}, {0: batch})), sizes=sizes)


def test_a_model_of_fixed_shapes_takes_another_batch_or_image_size():
    image = torch.arange(48.0).reshape(1, 3, 4, 4)
    model = LoadedModel("sum", Sum(), (image,))
    chosen = choose(model, sizes={"batch": 2, "size": 6})
    assert chosen.example_inputs[0].shape == (2, 3, 6, 6)
    assert torch.equal(chosen.example_inputs[0][1, :, :4, :4], image[0])
    assert chosen.traced_inputs is None, "it is exported at this size"
    with pytest.raises(UsageError, match=r"unknown dynamic dimension 'rows'.*valid: batch"):
        choose(PAIR, sizes={"rows": 2})
