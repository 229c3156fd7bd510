"""Memory and starts: every byte and every millisecond in one row, and what limits the peak."""

import json
import shutil
import subprocess
import time
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from changed_runs import change_manifest
from junitparser import JUnitXml
from made_starts import make_start
from run_folder import open_made_run

import workbench as wb

BRIEF = wb.MeasureOptions(toggle="none", runs=2, warmup=1, processes=2, evidence=False, roof=False)


@pytest.fixture(scope="module")
def run(conv_pte, tmp_path_factory):
    """A measured program of two delegates, twice, with a control."""
    root = tmp_path_factory.mktemp("out")
    return wb.measure(conv_pte, options=BRIEF, root=root, artifacts=False)


def start_runner(pte, mode, *flags):
    """The answer of a runner that lists its stages, and the wall time until it came, in ns."""
    command = [*wb.find_runner().command, "--server_mode", "--model_path", pte, "--stages", mode]
    began = time.monotonic_ns()
    with subprocess.Popen([*command, *flags], stdin=-1, stdout=-1, stderr=-3) as process:
        line = process.stdout.readline()
        elapsed = time.monotonic_ns() - began
        process.communicate(b"quit\n", timeout=60)
    return json.loads(line), elapsed


def test_the_stages_of_a_start_sum_to_its_wall_time(conv_pte):
    shares = []
    for _ in range(5):
        ready, elapsed = start_runner(conv_pte, "time", "--cpu_threads", "1")
        total = sum(stage["ns"] for stage in ready["stages"])
        assert total <= elapsed
        shares.append(total / elapsed)
    assert max(shares) > 0.5  # the rest: Python starts the process, and reads the answer
    names = [stage["name"] for stage in ready["stages"]]
    assert names[:6] == ["process", "libraries", "threads", "file", "program", "arenas"]
    assert names[-2:] == ["inputs", "first inference"]
    assert names.count("delegate") == 2


def test_each_set_of_inputs_is_executed_once(conv_pte, tmp_path):
    (tmp_path / "x.bin").write_bytes(bytes(4 * 3 * 64 * 64))
    inputs = ["--inputs", tmp_path / "x.bin"]
    ready, _ = start_runner(conv_pte, "time", *inputs, "--then", *inputs)
    names = [stage["name"] for stage in ready["stages"]]
    assert names[-4:] == ["inputs", "first inference", "inputs", "later inference"]


def test_a_cold_start_finds_the_file_out_of_the_page_cache(conv_pte, tmp_path):
    copy = tmp_path / "copy.pte"
    copy.write_bytes(conv_pte.read_bytes())
    subprocess.run(["sync", copy], check=True)
    assert start_runner(copy, "time")[0]["cached"] == 1
    cached = start_runner(copy, "cold")[0]["cached"]
    if cached == 1:
        pytest.skip("this file system keeps its pages")
    assert cached == 0


def test_an_unknown_mode_is_refused(conv_pte):
    ready, _ = start_runner(conv_pte, "hot")
    assert "takes one of time, cold, memory" in ready["message"]


def test_every_start_is_recorded_and_interleaved(run):
    counts = Counter((s.experiment, s.mode) for s in run.record.starts)
    names = [e.name for e in run.record.plan.experiments if not e.control]
    planned = {"memory": 1, "time": 2, "cold": 2}
    assert counts == {(name, mode): planned[mode] for name in names for mode in planned}
    firsts = [next(s for s in run.record.starts if s.number == n).experiment for n in range(2)]
    assert sorted(firsts) == sorted(names)


def test_the_same_program_needs_as_much_memory(run):
    resources = run.comparisons[0].resources.set_index("resource")
    assert resources.at["peak memory", "ratio"] == pytest.approx(1, rel=0.02)
    assert resources.at["peak memory", "outcome"] not in ("less", "more")


@pytest.mark.whole
def test_without_starts_nothing_is_claimed(conv_pte, tmp_path):
    options = replace(BRIEF, cold_start=False, processes=1)
    run = wb.measure(conv_pte, options=options, root=tmp_path, artifacts=False)
    on = run.subject
    for resources in (on.resources, run.comparisons[0].resources):
        assert resources["resource"].tolist() == ["latency"]


# --- accounting on made-up starts ----------------------------------------------------------------


def needs_of(folder, *starts):
    """The measurement of a made run with these starts."""
    changes = {"starts": starts}
    return open_made_run(folder, {"a": 6.0}, traced=1, processes=1, changes=changes)["a"]


def test_systems_without_proc_have_times_alone(tmp_path):
    nothing = dict.fromkeys(("anonymous", "files", "program", "pss", "peak"), 0)
    starts = [make_start(number=n) for n in range(3)] + [make_start(mode="memory")]
    starts = [replace(s, memory=replace(s.memory, **nothing)) for s in starts]
    needs = needs_of(tmp_path, *starts)
    resources = wb.compare(needs, needs).resources["resource"].tolist()
    assert resources == ["latency", "first output", "CPU time of a start"]


def test_times_of_starts_that_others_decided_are_not_stated(tmp_path):
    warm = [make_start(number=n, scale=1.1) for n in range(3)]
    cold = [make_start(number=n, mode="cold", scale=scale) for n, scale in enumerate((1, 0.9, 1.1))]
    needs = needs_of(tmp_path / "fast", *warm, *cold)
    assert "cold first output" not in set(needs.resources["resource"])
    assert "cold" not in str(needs.caveats), "nothing is said of what is not stated"
    cold = [
        replace(s, stages=make_start(scale=k).stages) for s, k in zip(cold, (1, 1, 9), strict=True)
    ]
    needs = needs_of(tmp_path / "wild", *warm, *cold)
    rows = needs.resources.set_index("resource")
    assert rows.loc["cold first output", ["low", "high"]].isna().all()
    assert rows.loc["first output", ["low", "high"]].notna().all()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Experiments that need as much, a tenth more, and as much in one start only."""
    rng = np.random.default_rng(0)
    starts = [
        make_start(name, number, scale=scale * rng.normal(1, 0.003))
        for name, scale in (("off", 1), ("same", 1), ("more", 1.1))
        for number in range(5)
    ]
    starts.append(make_start("once"))
    names = dict.fromkeys(("off", "same", "more", "once"), 6.0)
    folder = tmp_path_factory.mktemp("needs")
    return open_made_run(folder, names, traced=1, changes={"starts": tuple(starts)})


def test_differences_of_needs_are_found_and_equal_ones_are_not(made):
    def compare(before, after):
        return made.compare(before, after).resources.set_index("resource").drop("latency")

    assert set(compare("off", "same")["outcome"]) == {"unchanged"}
    grown = compare("off", "more")
    assert grown.at["peak memory", "outcome"] == "more"
    assert grown.at["first output", "low"] < 1.1 < grown.at["first output", "high"]
    assert compare("more", "off").at["peak memory", "outcome"] == "less"
    assert compare("off", "once")["outcome"].unique() == ["inconclusive"]


def test_what_two_sides_need_is_a_figure(made):
    text = wb.plot_speedups(made.compare("off", "more").resources).alt_text
    assert "first output: 0.9" in text and ", more" in text


def test_a_gate_fails_if_the_peak_memory_grew_beyond_the_limit(made, cli):
    sides = [f"{made.path}:{name}" for name in ("off", "more")]
    for limit, code, gate in (("5%", 1, "failed"), ("30%", 0, "passed"), ("10%", 0, "undecided")):
        found = cli("compare", *sides, "--fail-memory-above", limit, "--json")
        gates = {row["resource"]: row["gate"] for row in json.loads(found[1])["resources"]}
        assert found[0] == code
        assert gates == dict.fromkeys(gates, "open") | {"peak memory": gate}


@pytest.mark.whole
def test_a_gate_against_a_manifest_holds_starts_and_memory(tmp_path, cli):
    for name, scale in (("before", 1.0), ("after", 2.0)):
        starts = tuple(make_start(number=n, scale=scale + n / 1000) for n in range(5))
        made = open_made_run(
            tmp_path / name, {"a": 6.0}, traced=1, processes=5, changes={"starts": starts}
        )
        if name == "before":
            baseline = made.path / "manifest.json"
    for flag, resource in (
        ("--fail-memory-above", "peak memory"),
        ("--fail-start-above", "first output"),
    ):
        for limit, code, gate in (("20%", 1, "failed"), ("300%", 0, "passed")):
            found = cli("compare", made.path, "--baseline", baseline, flag, limit, "--json")
            assert found[0] == code, found
            gates = {row["resource"]: row["gate"] for row in json.loads(found[1])["resources"]}
            assert gates == dict.fromkeys(gates, "open") | {resource: gate}
    content = json.loads(baseline.read_text())
    content["starts"] = []
    baseline.write_text(json.dumps(content))
    code, _, err = cli("compare", made.path, "--baseline", baseline, "--fail-start-above", "5%")
    assert code > 0
    assert "the starts of a side were not measured" in err


# --- the gate ------------------------------------------------------------------------------------


def test_the_command_line_compares_what_two_sides_need(run, cli, tmp_path):
    sides = [f"{run.path}:{name}" for name in ("baseline", "repeat")]
    report = tmp_path / "report.xml"
    code, out, _ = cli("compare", *sides, "--fail-memory-above", "50%", "--junit", report)
    assert code == 0
    assert "| peak memory | MB |" in out and "| first output | ms |" in out
    (suite,) = JUnitXml.fromfile(str(report))
    assert suite.name == "at most 50 % more peak memory"
    names = [case.name for case in suite]
    assert "peak memory" in names and len(names) == len(set(names))


# --- side by side --------------------------------------------------------------------------------


def test_a_comparison_has_latency_and_memory_side_by_side(run):
    resources = run.comparisons[0].resources.set_index("resource")
    assert [*resources.index[:2], "peak memory"] == ["latency", "first output", "peak memory"]
    latency = run.comparisons[0].latency.iloc[0]
    assert resources.at["latency", "ratio"] == pytest.approx(1 / latency["speedup"])
    assert "size" not in resources.index  # one program


def test_combined_pages_have_the_needs_of_every_run(run):
    expected = run.subject.resources.set_index("resource")["value"]
    table = wb.combine_runs([f"{run.path}:{name}" for name in ("baseline", "repeat")]).runs
    row = table[table["experiment"] == run.subject.name].iloc[0]
    assert row["first_output_ms"] == pytest.approx(expected["first output"])
    assert row["peak_mb"] == pytest.approx(expected["peak memory"])


def test_a_gate_on_memory_that_was_not_measured_is_refused(cli, tmp_path):
    sample = shutil.copytree(wb.sample_run("unet_small"), tmp_path / "run")
    change_manifest(sample, starts=[])
    sides = [f"{sample}:{name}" for name in ("avx512_off", "avx512_on")]
    code, _, err = cli("compare", *sides, "--fail-memory-above", "5%")
    assert code != 0
    assert "the memory of a side was not measured" in err
