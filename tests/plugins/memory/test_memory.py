"""Memory, starts and files: every byte and every millisecond in one row, and what follows."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from findings_table import tabulate
from made_starts import make_start
from program_builder import Delegate, Node, measured
from run_folder import open_made_run, write_run

import workbench as wb

BRIEF = wb.MeasureOptions(toggle="none", runs=2, warmup=1, processes=2, evidence=False, roof=False)


@pytest.fixture(scope="module")
def run(conv_pte, tmp_path_factory):
    """A measured program of two delegates, with a control."""
    root = tmp_path_factory.mktemp("out")
    return wb.measure(conv_pte, options=BRIEF, root=root, artifacts=False)


@pytest.mark.whole
def test_every_byte_of_the_resident_set_is_in_one_row(run):
    sides = [m for m in run.measurements if not m.control]
    assert len(sides) < len(run.measurements)
    for measurement in sides:
        memory = measurement.memory.set_index("part")
        (probe,) = [s for s in measurement.starts if s.mode == "memory"]
        assert memory["size_bytes"].sum() == probe.stages[-1].peak
        assert memory["share"].sum() == pytest.approx(1)
        assert abs(memory.at["not accounted for", "share"]) < 0.03
        assert memory.at["program file", "size_bytes"] >= 4 * (3 * 32 + 32 * 64) * 9
        assert memory.at["delegate 1", "size_bytes"] > 4 * (3 * 32 + 32 * 64) * 9


def test_arenas_are_those_of_the_memory_planner(run, conv_pte):
    from executorch.exir._serialize._program import deserialize_pte_binary

    (plan,) = deserialize_pte_binary(conv_pte.read_bytes()).program.execution_plan
    sizes = run.subject.memory.set_index("part")["size_bytes"]
    assert sizes["arenas"] == sum(plan.non_const_buffer_sizes)
    assert sizes["inputs"] == 4 * 3 * 64 * 64


def test_cold_start_rows_sum_to_the_mean_of_the_starts(run):
    table = run.subject.cold_start
    for cache, rows in table.groupby("cache"):  # on a busy machine, only the warm ones
        starts = [s for s in run.subject.starts if s.mode == {"warm": "time"}.get(cache, cache)]
        means = np.mean([sum(stage.ns for stage in s.stages) for s in starts]) / 1e6
        assert rows["mean_ms"].sum() == pytest.approx(means)
        assert rows["share"].sum() == pytest.approx(1)
        assert set(rows["starts"]) == {len(starts)}
    resources = run.subject.resources.set_index("resource")
    warm = table.loc[table["cache"] == "warm", "mean_ms"].sum()
    assert resources.at["first output", "value"] == pytest.approx(warm)


def needs_of(folder, *starts):
    """The measurement of a made run with these starts."""
    changes = {"starts": starts}
    return open_made_run(folder, {"a": 6.0}, traced=1, processes=1, changes=changes)["a"]


def sizes_of(folder, start):
    return needs_of(folder, start).memory.set_index("part")["size_bytes"]


#: What is more in the last stage of a start, the rows that follow, and whether malloc counts. A
#: workspace may have gaps: pages that were allocated and never written are not resident.
LAST_STAGES = {
    "counted by malloc": ({}, {"delegate": 600_000, "runner": 160_000}, True),
    "not counted": ({}, {"delegate": 600_000, "runner": 160_000}, False),
    "gaps": ({"heap": 70_000, "unwritten": 70_000}, {}, True),
    "freed": ({"peak": 300_000}, {"freed": 300_000}, True),
}


@pytest.mark.parametrize("case", LAST_STAGES)
def test_every_byte_is_counted_once(tmp_path, case):
    changes, rows, heap = LAST_STAGES[case]
    start = make_start(mode="memory", heap=heap)
    *before, last = start.stages
    more = {name: getattr(last, name) + count for name, count in changes.items()}
    sizes = sizes_of(tmp_path, replace(start, stages=(*before, replace(last, **more))))
    expected = {"first inference": 130_000, "not accounted for": 0} | rows
    assert sizes[[*expected]].to_dict() == expected
    assert sizes.sum() == 1_000_000 + changes.get("peak", 0)


def test_starts_with_other_stages_are_not_accounted_for(tmp_path):
    start = make_start(mode="memory")
    other = replace(start, stages=(replace(start.stages[0], name="else"), *start.stages[5:7]))
    needs = needs_of(tmp_path, other, replace(other, mode="time"))
    assert needs.memory is None
    assert needs.cold_start["meaning"].iloc[0] == ""


def test_systems_without_proc_have_times_alone(tmp_path):
    nothing = dict.fromkeys(("anonymous", "files", "program", "pss", "peak"), 0)
    starts = [make_start(number=n) for n in range(3)] + [make_start(mode="memory")]
    starts = [replace(s, memory=replace(s.memory, **nothing)) for s in starts]
    needs = needs_of(tmp_path, *starts)
    assert needs.memory is None
    assert needs.cold_start["mean_ms"].sum() == pytest.approx(10.1)


def test_cold_starts_that_others_decided_are_no_rows(tmp_path):
    warm = [make_start(number=n, scale=1.1) for n in range(3)]
    cold = [make_start(number=n, mode="cold", scale=scale) for n, scale in enumerate((1, 0.9, 1.1))]
    assert set(needs_of(tmp_path, *warm, *cold).cold_start["cache"]) == {"warm"}


def test_without_starts_nothing_is_claimed(tmp_path):
    needs = needs_of(tmp_path)
    assert (needs.memory, needs.cold_start) == (None, None)
    assert "Times, memory and size" not in str(wb.show(needs.run, "memory"))


def test_the_parts_of_a_file_sum_to_its_size(run, conv_pte, pair_pte, outside_pte):
    for path in (conv_pte, pair_pte, outside_pte[0]):
        parts = wb.open_program(path).layers.file
        assert sum(part.size_bytes for part in parts) == path.stat().st_size
        assert min(part.size_bytes for part in parts) >= 0
    parts = run.subject.file_parts
    assert parts["size_bytes"].sum() == conv_pte.stat().st_size
    weights = parts.loc[parts["part"] == "weights", "size_bytes"].sum()
    assert weights == 4 * ((3 * 9 + 1) * 32 + (32 * 9 + 1) * 64 + 65 * 10)


#: The peak is the concatenation: 2 x 4000 bytes are copied to 8000.
SHAPES = {"x": (500,), "a": (1000,), "b": (1000,), "c": (2000,), "y": (500,)}
CONCATENATION = Delegate(
    [
        Node("Conv2d", "x W", "a", 1.0, module="left"),
        Node("Conv2d", "x V", "b", 1.0, module="right"),
        Node("Concatenate2", "a b", "c", 0.1, module="join"),
        Node("Conv2d", "c U", "y", 1.0, module="head"),
    ]
)


def test_the_tensors_that_are_live_at_the_peak_are_listed():
    tensors = measured(CONCATENATION, shapes=SHAPES).tensors
    live = tensors[tensors["at_peak"] & (tensors["memory"] != "arenas")].set_index("operator")
    assert live["size_bytes"]["Concatenate2"] == 8000
    assert live["size_bytes"]["Conv2d"].tolist() == [4000, 4000]
    lives = tensors.set_index("module")[["first", "last"]]
    assert lives.loc["left"].tolist() == [0, 2]
    assert lives.loc["join"].tolist() == [2, 3]


def test_a_pointwise_operator_writes_over_its_operand():
    nodes = [("Conv2d", "x W", "a", 1.0), ("Sigmoid", "a", "b", 0.1), ("Conv2d", "b V", "y", 1.0)]
    tensors = measured(Delegate([Node(*node) for node in nodes]), shapes=SHAPES).tensors
    peaks = tensors[tensors["at_peak"]].groupby("memory")["size_bytes"].sum()
    assert sorted(peaks) == [2000, 4000]  # x or y in the arenas, a or b in the delegate


def find(facts, rule):
    findings = tabulate(facts)
    return findings[findings["rule"] == rule]


def test_one_concatenation_that_sets_the_peak_is_found():
    facts = measured(CONCATENATION, shapes=SHAPES)
    (row,) = find(facts, "memory peak").to_dict("records")
    assert "one concatenation in join" in row["cause"]
    assert row["share"] == pytest.approx(8000 / 18000)
    assert row["gain_ms"] != row["gain_ms"]
    assert "Gain: 44 % of the activation memory" in str(wb.show(facts, "findings"))


def test_a_concatenation_with_large_products_or_two_readers_is_left_alone():
    assert find(measured(CONCATENATION, shapes=SHAPES | {"y": (4000,)}), "memory peak").empty
    twice = Delegate([*CONCATENATION.nodes, Node("Sigmoid", "c", "z", 0.1)])
    assert find(measured(twice, shapes=SHAPES | {"z": (2000,)}), "memory peak").empty


@pytest.mark.parametrize(("scale", "found"), [(1.0, 1), (0.5, 0)])
def test_a_start_that_mostly_packs_weights_is_found(tmp_path, scale, found):
    starts = [make_start(number=n, scale=scale) for n in range(3)]
    cold = needs_of(tmp_path, *starts).cold_start
    facts = measured(CONCATENATION, shapes=SHAPES, cold_start=cold)
    rows = find(facts, "slow start")
    assert len(rows) == found  # at half the time, the set-up takes 3 ms: too short to matter
    assert all("6.0 of 10.1 ms" in title for title in rows["cause"])
    assert wb.show(facts, "findings").html.count("<details><summary>7 lines of code") == found


@pytest.mark.parametrize(("read", "found"), [(40, 1), (4, 0)])
def test_weights_that_are_resident_twice_are_found(read, found):
    sizes = {"delegate": 50, "program file": read, "libraries": 50 - read}
    rows = [(part, "", size * 10**6, size / 100) for part, size in sizes.items()]
    memory = pd.DataFrame(rows, columns=["part", "meaning", "size_bytes", "share"])
    rows = find(measured(CONCATENATION, shapes=SHAPES, memory=memory), "weights twice")
    assert len(rows) == found
    if found:
        assert "50.0 MB as the delegate packed them, and 40.0 MB as pages" in rows["cause"].iloc[0]
        assert rows["share"].iloc[0] == pytest.approx(0.4) and rows["of"].iloc[0] == "peak memory"


@pytest.mark.parametrize(
    ("unused", "most", "found"), [(300_000, 512, 1), (300_000, 64, 0), (9, 512, 0)]
)
def test_arenas_that_are_planned_for_larger_inputs_are_found(tmp_path, unused, most, found):
    probe = make_start(mode="memory")
    last = replace(probe.stages[-1], unused=unused)
    start = replace(probe, stages=(*probe.stages[:-1], last))
    folder = write_run(tmp_path, {"a": 6.0}, traced=1, processes=1, changes={"starts": (start,)})
    manifest = json.loads((folder / "manifest.json").read_text())
    shapes = {"shape": [1, 64], "most": [1, most], "dims": ["", "tokens"]}
    manifest["plan"]["inputs"] = [{"dtype": "int64", **shapes}]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    titles = find(wb.open_run(folder)["a"], "wide arenas")["cause"].tolist()
    assert len(titles) == found
    assert all("are unused at tokens 64 of 512" in title for title in titles)
