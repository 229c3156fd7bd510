"""Flame graphs: the format's own rules, and totals that are those of the ledger."""

import json
import math
from pathlib import Path

import jsonschema
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.analysis.ledger import build_ledger
from workbench.analysis.operators import summarize_categories
from workbench.datasets import sample_run
from workbench.errors import ComparisonError
from workbench.trace.etdump import read_etdump
from workbench.trace.writers.speedscope import write_speedscope
from workbench.workflow import export_trace

GOLDEN = sorted((Path(__file__).parent / "data" / "etdump").glob("*.etdump"))

# What file-format-spec.ts of speedscope asks of a file with sampled profiles.
FORMAT = {
    "type": "object",
    "required": ["$schema", "shared", "profiles"],
    "properties": {
        "$schema": {"const": "https://www.speedscope.app/file-format-schema.json"},
        "name": {"type": "string"},
        "exporter": {"type": "string"},
        "activeProfileIndex": {"type": "integer", "minimum": 0},
        "shared": {
            "type": "object",
            "required": ["frames"],
            "properties": {
                "frames": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["name"],
                        "properties": {"name": {"type": "string"}},
                        "additionalProperties": False,
                    },
                }
            },
        },
        "profiles": {
            "type": "array",
            "items": {
                "type": "object",
                "required": [
                    "type",
                    "name",
                    "unit",
                    "startValue",
                    "endValue",
                    "samples",
                    "weights",
                ],
                "properties": {
                    "type": {"const": "sampled"},
                    "name": {"type": "string"},
                    "unit": {"const": "nanoseconds"},
                    "startValue": {"type": "number"},
                    "endValue": {"type": "number"},
                    "samples": {
                        "type": "array",
                        "items": {"type": "array", "items": {"type": "integer", "minimum": 0}},
                    },
                    "weights": {"type": "array", "items": {"type": "number", "minimum": 0}},
                },
                "additionalProperties": False,
            },
        },
    },
    "additionalProperties": False,
}


def load(path):
    """The file as speedscope would read it; refuses what is none."""

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    content = json.loads(path.read_text(), parse_constant=refuse)
    jsonschema.validate(content, FORMAT)
    frames = content["shared"]["frames"]
    assert 0 <= content["activeProfileIndex"] < len(content["profiles"])
    for profile in content["profiles"]:
        assert len(profile["samples"]) == len(profile["weights"])
        assert all(index < len(frames) for stack in profile["samples"] for index in stack)
        assert profile["endValue"] == pytest.approx(math.fsum(profile["weights"]), rel=1e-12)
    return content


def mean_e2e(path):
    """Mean nanoseconds of ``Method::execute``, without the ledger."""
    events = read_etdump(path)
    return events.loc[(events["kind"] == "method") & (events["run"] >= 0), "duration_ns"].mean()


def traces():
    return {
        side: sorted(sample_run().glob(f"avx512_{side}/*_t1.etdump"))[0] for side in ("off", "on")
    }


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_the_total_is_the_mean_latency(path, tmp_path):
    (file,) = export_trace(path, "speedscope", out=tmp_path / "it.json")
    (profile,) = load(file)["profiles"]
    assert profile["endValue"] == pytest.approx(mean_e2e(path), rel=1e-9)


def test_a_baseline_is_a_profile_of_its_own(tmp_path):
    off, on = traces().values()
    (file,) = export_trace(on, "speedscope", out=tmp_path / "it.json", baseline=off)
    content = load(file)
    assert [p["name"] for p in content["profiles"]] == [
        f"baseline: {off.stem}",
        f"candidate: {on.stem}",
    ]
    for path, profile in zip((off, on), content["profiles"], strict=True):
        assert profile["endValue"] == pytest.approx(mean_e2e(path), rel=1e-9)
        names = [frame["name"] for frame in content["shared"]["frames"]]
        totals = (
            pd.Series(profile["weights"])
            .groupby([names[stack[0]] for stack in profile["samples"]])
            .sum()
        )
        expected = summarize_categories(build_ledger(read_etdump(path)))
        expected = expected.set_index("category")["mean_ms"]
        expected = expected[expected > 0]
        assert (totals / 1e6).to_dict() == pytest.approx(expected.to_dict(), rel=1e-9)


def test_samples_are_in_the_order_of_execution(tmp_path):
    path = traces()["on"]
    (file,) = export_trace(path, "speedscope", out=tmp_path / "it.json")
    content = load(file)
    frames, (profile,) = content["shared"]["frames"], content["profiles"]
    stacks = [[frames[index]["name"] for index in stack] for stack in profile["samples"]]
    ledger = build_ledger(read_etdump(path))
    assert [stack[-1] for stack in stacks] == ledger[ledger["run"] == 0]["operator"].tolist()
    assert ["Convolution", "depthwise", "Convolution (NHWC, F32) DWConv"] in stacks


def test_a_trace_without_a_whole_run_has_no_mean(tmp_path):
    import etdump_builder as build

    path = tmp_path / "it.etdump"
    path.write_bytes(build.build_etdump([build.Block("Execute", [build.Profile("x")])]))
    with pytest.raises(ComparisonError, match="holds no run"):
        export_trace(path, "speedscope")


def test_frames_of_one_name_at_two_levels_are_two(tmp_path):
    table = pd.DataFrame({"outer": ["a", "b"], "inner": ["b", "b"], "ns": [1.0, 2.0]})
    path = write_speedscope({"it": table}, tmp_path / "it", stack=["outer", "inner"], weight="ns")
    content = load(path)
    assert [frame["name"] for frame in content["shared"]["frames"]] == ["a", "b", "b"]
    assert content["profiles"][0]["samples"] == [[0, 1], [2, 1]]


def test_a_time_below_zero_is_locked_from_the_others(tmp_path):
    table = pd.DataFrame({"what": ["a", "b", "c"], "ns": [30.0, -10.0, 70.0]})
    path = write_speedscope({"it": table}, tmp_path / "it", stack=["what"], weight="ns")
    assert load(path)["profiles"][0]["weights"] == pytest.approx([27, 0, 63])


@settings(deadline=None)
@given(
    weights=st.lists(st.integers(-(10**6), 10**12), min_size=1),
    name=st.text(),
    stack=st.lists(st.text(min_size=1), min_size=1, max_size=3),
)
def test_any_weights_and_names_give_a_file_of_the_same_total(
    tmp_path_factory, weights, name, stack
):
    weights.append(10**9 + sum(abs(weight) for weight in weights))
    columns = [str(level) for level in range(len(stack))]
    table = pd.DataFrame([stack] * len(weights), columns=columns).assign(ns=weights)
    path = tmp_path_factory.getbasetemp() / "any.json"
    content = load(write_speedscope({name: table}, path, stack=columns, weight="ns"))
    assert content["profiles"][0]["endValue"] == pytest.approx(sum(weights), rel=1e-9)
    assert [frame["name"] for frame in content["shared"]["frames"]] == stack
    if min(weights) >= 0:
        assert content["profiles"][0]["weights"] == weights
