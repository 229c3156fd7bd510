"""Inferences at the rate of an application, beside those without pauses."""

import pytest
from explored import read_data
from run_folder import EVERY_2_MS, check_rates, open_paced_run

import workbench as wb


def test_percentiles_and_deadlines_at_a_rate(tmp_path):
    times, late = [*[2.0] * 97, 4.0, 9.0, 11.0], [0.1] * 100
    run = open_paced_run(tmp_path, 10, times, [*late[:97], 7.0, 1.5, 0.0])
    paced, tight = run["on"].paced.to_dict("records")
    assert (paced["loop"], paced["inferences"], tight["loop"]) == (
        "every 10 ms", 300, "without pauses",
    )  # fmt: skip
    assert (paced["p50"], paced["p90"], paced["p99"]) == (2, 2, pytest.approx(9, abs=0.1))
    assert paced["missed"] == 9, "4 + 7, 9 + 1.5 and 11 ms, in each of three restarts"
    assert tight["p50"] == pytest.approx(1, rel=0.05)
    assert run["off"].paced is None
    assert "9 of 300 ended after the next was due" in str(read_data(run))
    assert "every 10 ms" in wb.show(run, "latencies").markdown


@pytest.mark.whole
def test_a_rate_is_measured_beside_the_tight_loop(cli, conv_pte, tmp_path):
    code, _, err = cli("run", conv_pte, *EVERY_2_MS, "--out", tmp_path / "out")
    assert code == 0, err
    check_rates(wb.open_run(next((tmp_path / "out/runs").iterdir())))


@pytest.mark.parametrize("every_s", [0.0001, 61, -1.0, float("nan")])
def test_a_rate_out_of_range_is_one_line(conv_pte, every_s):
    with pytest.raises(wb.WorkbenchError, match="--every: must be from 1 ms to 60 s"):
        wb.measure(conv_pte, options=wb.MeasureOptions(every_s=every_s))


@pytest.mark.whole
def test_an_emulated_cpu_has_no_rate(cli, conv_pte):
    code, _, err = cli("run", conv_pte, "--every", "33ms", "--target", "qemu")
    assert code == 2 and err == "error: --every: an emulated CPU has no times\n"
