"""Debug events: numbers, tensors and lists of them, with and without the debug buffer."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from etdump_builder import Allocation, Block, Debug, Profile, Tensor, build_etdump
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.errors import TraceError
from workbench.trace.debug_events import DTYPES, read_values
from workbench.trace.etdump import read_etdump

DATA = Path(__file__).parent / "data" / "etdump"
FLOAT32 = next(number for number, name in DTYPES.items() if name == "float32")


@pytest.fixture
def read(tmp_path):
    """Reads debug events of one block; of ``data``, the debug buffer."""

    def read_events(*events, data=None, **options):
        path, buffer = tmp_path / "trace.etdump", tmp_path / "debug.bin"
        path.write_bytes(build_etdump([Block("Execute", events)], **options))
        if data is None:
            return read_values(path)
        buffer.write_bytes(data)
        return read_values(path, buffer)

    return read_events


def test_what_the_runtime_logged_for_a_delegate():
    """What ``writer.cpp`` logged, as often as it did."""
    values = read_values(DATA / "delegate_ids.etdump", DATA / "delegate_ids.bin")
    matrix = np.arange(6, dtype=np.float32).reshape(2, 3)
    image = np.arange(12, dtype=np.int16).reshape(1, 2, 2, 3)
    expected = [
        ("logits", -1, -1, False, matrix),
        ("", 11, -1, False, 7),
        ("", 12, -1, False, True),
        ("", 12, -1, False, 0.5),
        ("states", -1, 0, False, matrix),
        ("states", -1, 1, False, np.zeros((0, 4), np.uint8)),
        ("states", -1, 2, False, image),
        ("", -1, -1, True, image),
        ("", -1, -1, False, -5),
        ("", -1, -1, False, 2.5),
        ("", -1, -1, False, False),
    ]
    assert values["block"].tolist() == [n for n in range(3) for _ in expected]
    columns = ["name", "delegate_id", "element", "output", "value"]
    for row, wanted in zip(values[columns].itertuples(index=False), expected * 3, strict=True):
        assert row[:-1] == wanted[:-1]
        assert type(row.value) is type(wanted[-1])
        assert np.array_equal(row.value, wanted[-1])
        assert getattr(row.value, "dtype", None) == getattr(wanted[-1], "dtype", None)
    inside = values["event"] % 14 < 8
    assert values.loc[inside, ["chain", "instruction"]].drop_duplicates().values.tolist() == [
        [0, 4]
    ]


@pytest.mark.slow
def test_the_program_turns_the_logged_inputs_into_the_logged_outputs():
    """An oracle from outside: the first tensor of a run was its input, the last one its output."""
    torch = pytest.importorskip("torch")
    portable = pytest.importorskip("executorch.extension.pybindings.portable_lib")
    program = portable._load_for_executorch(str(DATA / "two_methods.pte"))
    values = read_values(DATA / "debug_events.etdump", DATA / "debug_events.bin")
    for _, run in values.groupby("block"):
        image = torch.tensor(run["value"].iloc[0])
        (output,) = program.run_method("encode", (image,))
        assert run["output"].tolist() == [False] * (len(run) - 1) + [True]
        assert np.allclose(run["value"].iloc[-1], output.numpy(), atol=1e-6)


def test_debug_events_and_profile_events_are_counted_together():
    trace = DATA / "debug_events.etdump"
    numbers = [*read_etdump(trace)["event"], *read_values(trace)["event"]]
    assert sorted(numbers) == list(range(len(numbers)))


def test_without_the_buffer_tensors_have_no_elements():
    values = read_values(DATA / "debug_events.etdump")
    assert set(values["type"]) == {"tensor"}
    assert values["value"].isna().all()
    assert values["shape"].tolist()[:2] == [(1, 3, 8, 8), (1, 4, 8, 8)]
    assert values["offset"].tolist()[:2] == [0, 768]


NUMBERS = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.floats(width=32).map(np.float32),
)


@settings(deadline=None)
@given(numbers=st.lists(NUMBERS, max_size=8))
def test_any_number_comes_back(tmp_path_factory, numbers):
    path = tmp_path_factory.getbasetemp() / "numbers.etdump"
    path.write_bytes(build_etdump([Block("", [Debug(None, number) for number in numbers])]))
    values = read_values(path)
    names = {bool: "bool", int: "int", float: "float", np.float32: "float"}
    assert values["type"].tolist() == [names[type(number)] for number in numbers]
    for value, number in zip(values["value"], numbers, strict=True):
        assert value == number or (math.isnan(value) and math.isnan(number))


SHAPES = st.lists(st.integers(0, 4), max_size=4).flatmap(
    lambda shape: st.tuples(st.just(shape), st.permutations(range(len(shape))))
)


@settings(deadline=None)
@given(
    tensors=st.lists(SHAPES, min_size=1, max_size=4),
    dtype=st.sampled_from(["uint8", "int16", "int64", "float16", "float64", "bool"]),
    listed=st.booleans(),
    gap=st.integers(0, 7),
)
def test_any_dense_tensor_comes_back(tmp_path_factory, tensors, dtype, listed, gap):
    folder = tmp_path_factory.getbasetemp()
    number = next(n for n, name in DTYPES.items() if name == dtype)
    arrays, logged, data = [], [], b""
    rng = np.random.default_rng(0)
    for shape, order in tensors:
        stored = rng.integers(0, 2, shape).astype(dtype)
        array = stored.transpose(order)
        data += bytes(gap)
        strides = [step // array.itemsize for step in array.strides]
        logged.append(Tensor(number, array.shape, strides, len(data)))
        data += stored.tobytes()
        arrays.append(array)
    events = [Debug(None, logged)] if listed else [Debug(None, tensor) for tensor in logged]
    (folder / "it.etdump").write_bytes(build_etdump([Block("", events)]))
    (folder / "it.bin").write_bytes(data + b"\0")
    values = read_values(folder / "it.etdump", folder / "it.bin")
    assert values["element"].tolist() == (
        list(range(len(arrays))) if listed else [-1] * len(arrays)
    )
    assert values["dtype"].tolist() == [dtype] * len(arrays)
    for value, array in zip(values["value"], arrays, strict=True):
        assert value.shape == array.shape and value.dtype == array.dtype
        assert np.array_equal(value, array)
        assert not value.flags.writeable or not value.size


def test_bfloat16_is_widened(read):
    number = next(n for n, name in DTYPES.items() if name == "bfloat16")
    data = (np.array([1.5, -2, np.inf], np.float32).view(np.uint32) >> 16).astype("<u2").tobytes()
    (value,) = read(Debug(None, Tensor(number, (3,), (1,))), data=data)["value"]
    assert value.tolist() == [1.5, -2, np.inf]


def test_a_dtype_without_a_like_in_numpy_has_no_array(read):
    values = read(
        Debug(None, Tensor(24, (1,), (1,))), Debug(None, Tensor(99, (1,), (1,))), data=b"x"
    )
    assert values["dtype"].tolist() == ["float8_e4m3fn", "scalar_type_99"]
    assert values["value"].tolist() == [None, None]


def test_a_value_that_is_none_and_an_empty_list(read):
    values = read(Debug("x", None), Debug("y", []), Debug("z", 1))
    assert values[["name", "type"]].values.tolist() == [["x", "none"], ["z", "int"]]


def test_names_and_ids(read):
    values = read(
        Debug("its name", 1, delegate_str="the delegate's"),
        Debug(None, 1, delegate_int=5, chain=-1),
        Debug("x", 1, output=True),
        Debug("x", 1, output=False),
    )
    assert values["name"].tolist() == ["the delegate's", "", "x", "x"]
    assert values["delegate_id"].tolist() == [-1, 5, -1, -1]
    assert values["instruction"].tolist() == [7, -1, 7, 7]
    assert values["output"].tolist() == [False, False, True, False]


def test_fields_of_a_newer_and_an_older_schema(read):
    events = [Debug("x", 1, output=True), Debug("x", Tensor(FLOAT32, (1,), (1,)))]
    known = read(*events)
    pd.testing.assert_frame_equal(read(*events, unknown_fields=2), known)
    # Before the runtime named debug events, and told outputs apart.
    older = read(*events, known_fields=5)
    assert older["name"].tolist() == ["", ""]
    assert older["output"].tolist() == [False, False]
    assert older["value"].tolist() == known["value"].tolist()


def test_no_values(read):
    assert len(read(Profile("x"), Allocation(1, 2))) == 0
    assert len(read()) == 0


MALFORMED = {
    "beyond": (Tensor(FLOAT32, (2,), (1,), 1), r"reaches beyond the debug buffer \(at byte 1\)"),
    "before": (Tensor(FLOAT32, (2,), (1,), -8), "reaches beyond the debug buffer"),
    "huge": (Tensor(FLOAT32, (2**40, 2**40), (2**40, 1)), "no tensor has shape"),
    "negative": (Tensor(FLOAT32, (-1,), (1,)), "no tensor has shape"),
    "strides": (Tensor(FLOAT32, (2, 1), (1,)), "no tensor has shape"),
    "backwards": (Tensor(FLOAT32, (2,), (-1,)), "no tensor has shape"),
    "gaps": (Tensor(FLOAT32, (2,), (2,)), "leave gaps"),
    "dimensions": (Tensor(FLOAT32, (1,) * 17, (1,) * 17), "no tensor has shape"),
}


@pytest.mark.parametrize("tensor, message", MALFORMED.values(), ids=MALFORMED)
def test_a_tensor_that_cannot_be_is_one_clear_line(read, tensor, message):
    with pytest.raises(TraceError, match=message) as caught:
        read(Debug(None, tensor), data=bytes(8))
    assert "\n" not in str(caught.value)


def test_the_stride_of_a_single_element_may_be_any_number(read):
    """It is never stepped along, and numpy could not hold this one in bytes."""
    values = read(Debug(None, Tensor(FLOAT32, (1, 2), (2**62, 1), 0)), data=bytes(8))
    assert values["value"].iloc[0].tolist() == [[0.0, 0.0]]


def test_a_debug_buffer_that_is_not_there(tmp_path):
    with pytest.raises(TraceError, match="No such file"):
        read_values(DATA / "debug_events.etdump", tmp_path / "absent.bin")


def test_lists_that_share_their_tensors_are_refused(tmp_path):
    path = tmp_path / "trace.etdump"
    tensors = [Tensor(FLOAT32, (), ())] * 40
    block = Block("", [Debug(None, tensors)])
    path.write_bytes(build_etdump([block], repeat=40))
    with pytest.raises(TraceError, match="overlap"):
        read_values(path)
