"""XNNPACK logs: names taken apart, odd bytes passed over."""

import time
from pathlib import Path

import pytest

import workbench as wb

DATA = Path(__file__).parent / "data" / "xnn_log"
OFF = (DATA / "sme2_off.log").read_text()
NAMES = [line.split() for line in (DATA / "names.txt").read_text().splitlines()[1:]]


def test_names_are_parsed(log):
    kernels = log("".join(f"Using gemm microkernel '{name}'\n" for name, *_ in NAMES))
    for (name, *parts), row in zip(NAMES, kernels.to_dict("records"), strict=True):
        expected = ["" if part == "-" else part for part in parts]
        assert [row[k] for k in ("type", "dtype", "variant", "tile", "arch")] == expected, name
        assert (row["sme"], row["sme2"]) == ("sme" in name, "sme2" in name)


@pytest.fixture
def log(tmp_path):
    """Write a log and read it."""

    def read(content):
        path = tmp_path / "xnntrace.log"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return wb.read_xnn_log(path)

    return read


def test_each_registration_is_a_row(log):
    kernels = log(OFF)
    assert kernels["line"].tolist() == [2, 3, 4, 5, 7]
    assert kernels["operator"].tolist() == ["gemm", "gemm", "igemm", "dwconv", "unary"]
    assert kernels["config"].tolist()[2:4] == ["init_f16_gemm_config", "init_f32_dwconv_config"]
    assert kernels["tile"].tolist() == ["1x8", "6x8", "6x16", "9p8c", ""]
    assert not kernels["sme"].any()
    assert kernels["count"].eq(1).all()


@pytest.mark.parametrize(
    "line",
    [
        "Using gemm microkernel 'xnn_f32_gemm_minmax_ukernel_6x8__neon'",
        "Note (XNNPACK): Using gemm microkernel 'xnn_f32_gemm_minmax_ukernel_6x8__neon'.",
        "07-01 12:00:00.000  77  78 I XNNPACK : Using gemm microkernel "
        "'xnn_f32_gemm_minmax_ukernel_6x8__neon'. (init_f32_gemm_config, gemm-config.c:1)\r",
    ],
    ids=["kit", "older", "logcat"],
)
def test_every_log_format_is_read(log, line):
    (row,) = log(f"{line}\n").to_dict("records")
    assert (row["kernel"], row["tile"]) == ("xnn_f32_gemm_minmax_ukernel_6x8__neon", "6x8")
    assert row["config"] == ("init_f32_gemm_config" if "init" in line else "")


def test_registrations_are_counted_by_place(log):
    line = "Using gemm microkernel 'xnn_f32_gemm_minmax_ukernel_6x8__neon'. ({}, x.c:1)\n"
    kernels = log(line.format("init_a") * 3 + line.format("init_b") + line.format("init_a"))
    assert kernels[["config", "line", "count"]].values.tolist() == [
        ["init_a", 1, 4],
        ["init_b", 4, 1],
    ]


def test_garbage_is_skipped(log):
    good = b"Using gemm microkernel 'xnn_f32_gemm_ukernel_6x8__neon'.\n"
    content = b"\x00\xff\xfe\n" + b"Using gemm microkernel '\xff\xff'\n" + b"\x80" * 10**6 + b"\n"
    kernels = log(content + good + b"Using  microkernel ''\nUsing gemm microkernel 'xnn_")
    assert kernels[["line", "count"]].values.tolist() == [[4, 1]]


def test_a_long_line_counts_as_one_and_is_read_at_its_beginning(log):
    good = b"Using gemm microkernel 'xnn_f32_gemm_ukernel_6x8__neon'."
    other = good.replace(b"6x8", b"9x9")
    kernels = log(good + b" " * 4096 + other + b"\n" + good + b"\n")
    assert kernels[["line", "tile", "count"]].values.tolist() == [[1, "6x8", 2]]


@pytest.mark.parametrize("content", [b"", b"Model executed.\n"], ids=["empty", "no logging build"])
def test_a_log_without_a_microkernel_says_how_to_get_one(log, content):
    with pytest.raises(Exception, match="XNN_LOG_LEVEL"):
        log(content)


def test_a_path_that_is_not_a_log(tmp_path):
    with pytest.raises(Exception, match="No such file"):
        wb.read_xnn_log(tmp_path / "none.log")
    with pytest.raises(Exception, match="directory"):
        wb.read_xnn_log(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "kai_" + "f3_" * 80 + "x",
        "xnn_" + "a_minmax_" * 25 + "ukernel",
    ],
)
def test_no_name_takes_long(log, name):
    begin = time.process_time()
    log(f"Using gemm microkernel '{name}'")
    assert time.process_time() - begin < 0.5
