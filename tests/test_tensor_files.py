"""Input and output files, and their comparison."""

import numpy as np
import pytest

from workbench.errors import RunnerError
from workbench.records.runs import Tensor
from workbench.run.tensor_files import compare_output_bytes, random_bytes, read_output


def agreement(a, b, dtype="float32"):
    a, b = np.asarray(a, dtype=np.float32), np.asarray(b, dtype=np.float32)
    return compare_output_bytes(a, b, names=("a", "b"), threads=1, output=0, dtype=dtype)


def test_equal_outputs_agree():
    result = agreement([1, -2, 3], [1, -2, 3])
    assert result.agree
    assert (result.max_abs, result.scale) == (0.0, 3.0)


@pytest.mark.parametrize(
    ("dtype", "error", "agree"),
    [
        ("float32", 5e-5, True),
        ("float32", 5e-4, False),
        ("float16", 5e-4, True),
        ("float16", 5e-2, False),
        ("int8", 0.0, True),
        ("int8", 1.0, False),
    ],
)
def test_the_tolerance_is_relative_to_the_largest_value(dtype, error, agree):
    values = np.array([1.0, 100.0])
    assert agreement(values, values + 100 * error, dtype).agree is agree


@pytest.mark.parametrize(
    ("a", "b"),
    [([np.nan, 1], [1, 1]), ([1, 1], [np.inf, 1]), ([np.inf], [-np.inf]), ([1, 2], [1, 2, 3])],
)
def test_what_cannot_be_subtracted_does_not_agree(a, b):
    result = agreement(a, b)
    assert result.max_abs is None
    assert not result.agree


def test_nan_in_both_agrees():
    assert agreement([np.nan, 1], [np.nan, 1]).agree


def test_bfloat16_is_widened(tmp_path):
    values = np.array([1.0, -2.5], dtype=np.float32)
    path = tmp_path / "out.bin"
    path.write_bytes((values.view(np.uint32) >> 16).astype(np.uint16).tobytes())
    np.testing.assert_array_equal(read_output(path, "bfloat16"), values)


@pytest.mark.parametrize("dtype", ["float32", "no such dtype"])
def test_an_incomplete_output_is_refused(tmp_path, dtype):
    (tmp_path / "out.bin").write_bytes(b"abc")
    with pytest.raises(RunnerError, match="cannot be read"):
        read_output(tmp_path / "out.bin", dtype)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int64", "uint8", "bool"])
def test_random_inputs_of_every_dtype(dtype):
    size = {"float16": 2, "bfloat16": 2, "int64": 8, "uint8": 1, "bool": 1}[dtype]
    data = random_bytes(Tensor(dtype, (5, 7)), seed=1)
    assert len(data) == 35 * size
    assert len(set(data)) > 1
