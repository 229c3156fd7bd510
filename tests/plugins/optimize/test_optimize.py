"""Variants of a program: what is proposed, how the search goes on, and what a recipe makes."""

import html
import itertools
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import mutants
import pandas as pd
import pytest
import torch
from drawn import assert_tidy, texts_of
from exporting import export_quietly
from hypothesis import given, settings
from hypothesis import strategies as st
from made_models import exported, net, put
from needed import needs
from torch import nn

import workbench as wb
from workbench.analysis.findings.finding import Finding, Gain
from workbench.errors import RunnerError, StoreError, UsageError, WorkbenchError
from workbench.models.loader import LoadedModel, load_model
from workbench.options import QUANTISER_REWRITES, dtype_of_module
from workbench.plugins.optimize import search
from workbench.plugins.optimize.noise import measure_layer_noise
from workbench.plugins.optimize.proposals import (
    Choice,
    aim_db,
    choose_dtypes,
    combine_variants,
    list_choices,
    propose_mix,
    propose_rewrites,
)
from workbench.plugins.optimize.records import Study, Variant
from workbench.plugins.optimize.score import call_metric
from workbench.plugins.optimize.search import write_recipe
from workbench.plugins.optimize.study import pick_best, tabulate_variants
from workbench.records.codec import to_json
from workbench.records.recipe import Recipe
from workbench.store import load_recipe, save_export, sha256_of

MODEL = """
import torch
from torch import nn

class Small(nn.Module):
    example_inputs = (torch.randn(1, 8, 8, 8),)

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.second = nn.Conv2d(16, 16, 3, padding=1)
        self.body, self.head = nn.Linear(16, 32), nn.Linear(32, 8)

    def forward(self, x):
        x = self.first(x)
        x = (x + self.second(x).relu_()).mean((2, 3))
        left, right = self.head(self.body(x)).chunk(2, 1)
        return left * right + left[:, 0:4]
"""
BASE = Variant("the baseline", wb.ExportOptions(), name="00-fp32", whole=True)


@pytest.fixture
def small(tmp_path):
    (tmp_path / "small.py").write_text(MODEL)
    return f"{tmp_path / 'small.py'}:Small"


# --- which dtype for which layer -----------------------------------------------------------------

paths = st.lists(st.sampled_from("abc01"), min_size=1, max_size=4).map(".".join)
dtypes = st.sampled_from(["int8", "int8dyn"])


@given(st.dictionaries(paths, st.lists(dtypes, max_size=1), min_size=1))
def test_the_options_of_a_mix_give_every_layer_its_dtype(wanted):
    """Whatever layers lie within others."""
    some = {path: [Choice(one, 1.0, 1e-6) for one in each] for path, each in wanted.items()}
    kinds = {each[0] if each else "fp32" for each in wanted.values()}
    mix = propose_mix(BASE, some, 20.0, {})
    assert (mix is None) == (len(kinds) == 1)
    for path, each in wanted.items() if mix else ():
        dtype = dtype_of_module(path, mix.options.dtype, mix.options.module_dtypes)
        assert dtype == (each[0] if each else "fp32")


choices = st.builds(Choice, st.sampled_from(["int8", "int8dyn"]), st.floats(-1, 3), st.floats(0, 1))


@settings(max_examples=50)
@given(st.lists(st.lists(choices, max_size=1), max_size=5), st.floats(0.01, 3))
def test_chosen_dtypes_save_almost_the_most_within_the_noise(some, most):
    """By saving per noise, the choice misses the best one by at most the saving of a layer."""
    named = {str(number): each for number, each in enumerate(some)}
    chosen = choose_dtypes(named, most, {})
    assert sum(choice.noise for choice in chosen.values()) <= most
    every = itertools.product(*([Choice(), *each] for each in some))
    best = max(
        (sum(c.ms for c in them) for them in every if sum(c.noise for c in them) <= most),
        default=0.0,
    )
    largest = max((c.ms for each in some for c in each), default=0.0)
    assert sum(choice.ms for choice in chosen.values()) >= best - max(largest, 0.0) - 0.01


@settings(max_examples=50)
@given(st.lists(st.lists(choices, max_size=2), max_size=5), st.floats(0, 2))
def test_without_a_limit_the_choice_is_the_best_of_all_with_its_conversions(some, conversion):
    """However many layers have to change together to save a conversion."""
    named = {str(number): each for number, each in enumerate(some)}
    chosen = choose_dtypes(named, math.inf, {"*": conversion})
    every = itertools.product(*([Choice(), *each] for each in some))

    def saved(them):
        kinds = [False, *(choice.dtype == "int8" for choice in them), False]
        borders = sum(one != other for one, other in itertools.pairwise(kinds))
        return sum(choice.ms for choice in them) - borders * conversion

    assert saved(chosen.values()) == pytest.approx(max(map(saved, every)))


def test_choices_are_in_execution_order_with_what_each_layer_saves():
    def measured(**own_ms):
        layers = pd.DataFrame({"module": list(own_ms), "own_ms": list(own_ms.values())})
        ledger = pd.DataFrame({"row": [3, 1, 2], "key": ["y", "x", "z"]})
        operators = pd.DataFrame({"key": ["x", "y", "z"], "module": ["a", "b", None]})
        return SimpleNamespace(layers=layers, ledger=ledger, operators=operators)

    noise = {"int8:b": 0.1, "int8dyn:b": 0.2, "int8:a": 0.3, "8da4w:a": 0.4}
    quantized = {"int8": measured(a=1.0, b=1.0), "int8dyn": measured(a=2.0, b=3.0)}
    found = list_choices(noise, measured(a=2.0, b=4.0), quantized)
    assert list(found) == ["a", "b"]
    assert found["a"] == [Choice("int8", 1.0, 0.3)]
    assert found["b"] == [Choice("int8", 3.0, 0.1), Choice("int8dyn", 1.0, 0.2)]


def test_a_mix_leaves_the_noisiest_and_the_slower_layers_in_single_precision():
    known = {
        "stem": [Choice("int8", 1.0, 0.5)],
        "body.0": [Choice("int8", 2.0, 1e-4)],
        "body.1": [Choice("int8", -0.5, 1e-6)],
        "head": [Choice("int8", 0.1, 1e-4), Choice("int8dyn", 0.4, 1e-5)],
    }
    layers = propose_mix(BASE, known, 20.0, {})
    assert dict(layers.options.module_dtypes) == {
        "stem": "fp32", "body.1": "fp32", "head": "int8dyn"
    }  # fmt: skip
    assert layers.options.dtype == "int8"
    assert layers.predicted_sqnr_db == pytest.approx(-10 * math.log10(1.1e-4))
    assert "1 layer in int8dyn" in layers.change


def test_mixes_close_in_on_the_least_ratio_from_both_sides():
    def mix(predicted, measured):
        return replace(BASE, predicted_sqnr_db=predicted, sqnr_db=measured)

    assert aim_db(20.0, []) == pytest.approx(20.3)
    assert aim_db(20.0, [mix(21.0, 18.0)]) == pytest.approx(23.3)
    assert aim_db(20.0, [mix(21.0, 26.0)]) == pytest.approx(15.3)
    between = aim_db(20.0, [mix(21.0, 18.0), mix(23.0, 23.0), mix(22.0, None)])
    assert between == pytest.approx(21.0 + 2.0 * 2.3 / 5.0)


@pytest.mark.cases
def test_the_noise_of_single_layers_adds_up_to_that_of_the_program(small, tmp_path):
    model = load_model(small)
    alone = measure_layer_noise(model, wb.ExportOptions(dtype="int8"), ["head"], 60.0)
    assert {"first.0", "second", "body", "head"} <= alone.keys()
    assert next(name for name in alone if name) == "head"
    export = export_quietly(small, tmp_path, dtype="int8")
    assert -10 * math.log10(sum(alone.values())) == pytest.approx(export.sqnr_db, abs=4)
    # As many layers as there is time for, at least one; no mix takes the others.
    hurried = measure_layer_noise(model, wb.ExportOptions(dtype="int8"), ["head"], 0.0)
    assert hurried.keys() == alone.keys() and sum(power < 1 for power in hurried.values()) == 1


def finding(title, remedy):
    return Finding(title, Gain(1.0, 0.5, 2.0, "removal"), ("a",), remedy=remedy)


@needs("remedies")
def test_rewrites_are_proposed_for_what_findings_name_the_best_first():
    findings = [
        finding("outside the delegate: mean", "mean"),
        finding("outside: pow", "powers"),
        finding("2 layout conversions", "channels_last"),
        finding("int8 would read less", "int8"),
    ]
    proposed = propose_rewrites(BASE, findings)
    made = [(v.options.rewrite, v.options.channels_last) for v in proposed]
    assert made == [
        (("mean",), False), (("powers",), False), ((), True), (("mean", "powers"), True)
    ]  # fmt: skip
    assert not propose_rewrites(BASE, findings[3:])
    assert combine_variants(proposed[0], proposed[1:3]).options == proposed[3].options


@pytest.mark.cases
def test_a_kill_inside_a_measurement_loses_nothing(small, tmp_path):
    """Neither exports nor restarts that were measured completely are repeated."""
    options = wb.OptimizeOptions(budget_s=24.0, dtypes=("int8",))
    code = (
        "import workbench as wb; from pathlib import Path; from workbench import OptimizeOptions\n"
    )
    code += f"wb.optimize({small!r}, options={options!r}, root=Path({str(tmp_path / 'out')!r}))"
    place = tmp_path / "out" / "optimize"

    def list_sessions():
        """Of the measurement that goes on."""
        for path in place.glob("runs/*/manifest.json"):
            run = json.loads(path.read_text())
            if run["state"] == "incomplete":
                return path, [s for s in run["sessions"] if s["complete"]]
        return None, []

    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    try:
        deadline = time.monotonic() + 200
        while process.poll() is None and not list_sessions()[1] and time.monotonic() < deadline:
            time.sleep(0.02)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    manifest, kept = list_sessions()
    assert kept
    exported = {path: path.read_bytes() for path in place.rglob("*.export.json")}
    study = wb.optimize(small, options=options, root=tmp_path / "out")
    done = json.loads(manifest.read_text())
    assert done["state"] == "complete" and all(session in done["sessions"] for session in kept)
    assert exported and all(path.read_bytes() == text for path, text in exported.items())
    assert study.variants[0].state == "measured"


class Gated(nn.Module):
    """A sum of two values of int8, one of which was made of the other in single precision."""

    def __init__(self):
        super().__init__()
        self.stem, self.gate = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 3, padding=1)
        self.inner, self.last = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 1)

    def forward(self, x):
        x = self.stem(x)
        return self.last(x + self.inner(self.gate(x)))


@pytest.mark.cases
def test_a_quantised_branch_that_waits_for_itself_is_refused_with_what_helps(tmp_path):
    """ExecuTorch lowers the sum and what it reads as one, which then depends on itself."""
    model = LoadedModel("gated", Gated().eval(), (torch.randn(1, 8, 8, 8),))
    dtypes = (("", "fp32"), ("gate", "fp32"))
    with pytest.raises(wb.WorkbenchError, match=r"wait for each other.*-> keep a layer before"):
        export_quietly(model, tmp_path, dtype="int8", module_dtypes=dtypes)
    export = export_quietly(
        model, tmp_path, dtype="int8", module_dtypes=(*dtypes, ("stem", "fp32"))
    )
    assert export.options["quantized"].startswith("2 of 4") and export.sqnr_db > 25


# --- recipes and options -------------------------------------------------------------------------


@pytest.mark.cases
def test_a_recipe_makes_the_same_program_bit_for_bit(small, tmp_path):
    options = wb.ExportOptions(
        dtype="int8",
        module_dtypes=(("body", "int8dyn"), ("first", "fp32"), ("first.0", "int8")),
        rewrite=("mean", "slices"),
        inputs=("random:3",),
    )
    first = wb.export_model(small, options=options, root=tmp_path / "a")
    made = Recipe(small, options, 2, ("mean kept", "1.2x"), first.sha256, {"torch": "1"})
    path = tmp_path / "recipe.yaml"
    path.write_text(write_recipe(made))
    assert load_recipe(path) == made
    again = export_quietly(small, tmp_path / "b", recipe=str(path))
    assert again.sha256 == made.sha256
    assert again.options["module_dtypes"] == "body=int8dyn, first=fp32, first.0=int8"
    assert again.options["quantized"].startswith("3 of 4")
    other = export_quietly(small, tmp_path / "b", recipe=str(path), rewrite=("mean",))
    assert other.rewrite == ("mean",) and other.dtype == "int8"


@pytest.mark.parametrize(
    ("text", "words"),
    [("model: x\nexport: {dtyp: int8}\n", "dtyp"), ("model: x\n", "export"),
     ("schema_version: 99\nmodel: x\nexport: {}\n", "schema version 99"), ("a: [", "YAML")],
)  # fmt: skip
def test_a_malformed_recipe_is_one_line(text, words, tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    with pytest.raises((StoreError, UsageError), match=words):
        load_recipe(path)


@pytest.mark.parametrize(
    "options",
    [{"module_dtypes": (("a", "int3"),), "dtype": "int8"}, {"module_dtypes": (("a", "int8"),)},
     {"module_dtypes": (("a", "fp16"),), "dtype": "int8"}, {"rewrite": ("everything",)}],
)  # fmt: skip
def test_options_that_cannot_be_mixed_are_refused(options, small, tmp_path):
    with pytest.raises(UsageError):
        export_quietly(small, tmp_path, **options)


def test_a_metric_scores_the_outputs_or_fails_in_one_line(tmp_path):
    file = tmp_path / "my.py"
    file.write_text(
        "def score(outputs):\n    return len(outputs)\ndef bad(outputs):\n    return 1 / 0\n"
        "def nan(outputs):\n    return float('nan')\n"
    )
    assert call_metric(f"{file}:score", [[], []]) == 2.0
    for name in ("bad", "nan", "missing"):
        with pytest.raises(WorkbenchError, match="the metric"):
            call_metric(f"{file}:{name}", [])


@pytest.mark.parametrize(
    ("option", "words"),
    [("--metric=nowhere.py:score", "no such file"), ("--only-dtype=int3", "unknown dtype 'int3'")],
)
def test_what_no_search_accepts_is_refused_at_once(cli, option, words):
    code, _, err = cli("optimize", "toy_cnn", option)
    assert code == 2 and words in err and len(err.splitlines()) == 1


# --- the search, with exports and measurements that are made up ----------------------------------

#: The truth: what each dtype and rewrite multiplies the latency by, and the SQNR of each dtype.
FACTORS = {"fp32": 1.0, "fp16": 1.2, "fp16w": 1.3, "bf16": 2.0, "int8": 0.5, "int8dyn": 0.8,
           "8da4w": 0.9, "mean": 0.9, "slices": 0.7, "powers": 1.1}  # fmt: skip
SQNR = {"fp16": 60.0, "fp16w": 55.0, "bf16": 40.0, "int8": 5.0, "int8dyn": 30.0, "8da4w": 15.0}
CAUSES = {"mean": "mean runs", "slices": "squeeze_copy runs", "powers": "pow runs"}


def true_ms(options):
    factors = [FACTORS[options.dtype], *(FACTORS.get(name, 1.0) for name in options.rewrite)]
    return 10.0 * math.prod(factors) * (0.97 if options.channels_last else 1.0)


RECIPE = Path("out_toy_cnn/optimize/recipe.yaml")


class Landscape:
    """Exports and measurements by formula; ``calls`` counts them, ``stop_at`` interrupts one."""

    def __init__(self, monkeypatch):
        self.exported, self.measured, self.stop_at, self.steps = [], [], None, 0
        self.crashes, self.luck = "", 1.0
        self.clock, self.export_s = 0.0, 0.0
        monkeypatch.setattr(search, "time", SimpleNamespace(monotonic=lambda: self.clock))
        monkeypatch.setattr(search, "export_variant", self.export)
        monkeypatch.setattr(search, "measure", self.record)
        monkeypatch.setattr(search, "open_target", self.open_target)
        monkeypatch.setattr(search, "judge_variants", self.judge_variants)
        self.program = SimpleNamespace(export=None)
        monkeypatch.setattr(search, "open_program", lambda pte: self.program)
        monkeypatch.setattr(search, "fastest", self.find)

    def open_target(self, name):
        return nullcontext(SimpleNamespace(emulated=name == "qemu"))

    def step(self):
        self.steps += 1
        if self.steps == self.stop_at:
            raise KeyboardInterrupt

    def export(self, model, options, root, limits):
        self.step()
        if options.dtype == "fp16w":
            return {"state": "failed", "reason": "the exporter gives up"}
        self.exported.append(options)
        self.clock += self.export_s
        sqnr = SQNR.get(options.dtype)
        flaw = f"SQNR {sqnr} dB" if sqnr and sqnr < limits.min_sqnr_db else ""
        known = {"pte": str(root), "sha256": str(hash(options)), "size_bytes": 1000, "flaw": flaw}
        return {"state": "exported", "sqnr_db": sqnr, **known}

    def record(self, first, inputs, how, root, again, artifacts, progress):
        self.step()
        if any(
            self.crashes in pte for pte in (first.rpartition("/")[2], *how.against) if self.crashes
        ):
            raise RunnerError("the runner crashed", where=self.crashes)
        self.measured.append((str(first), *how.against))
        assert how.toggle == "none" and not again
        path = root / "runs" / str(len(self.measured))
        self.clock += 3.0
        record = SimpleNamespace(host={"cpu": "made up"}, spent_s=3.0)
        return SimpleNamespace(path=path, record=record, budget_s=how.budget_s)

    def judge_variants(self, run, study, names):
        base = true_ms(study[names[0]].options)
        known = {variant.name: variant for variant in study.variants}
        for name in names:
            is_lucky = name != names[0] and run.budget_s < search.LAST * study.options.budget_s
            ms = true_ms(known[name].options) / (self.luck if is_lucky else 1.0)
            facts = {"latency_ms": ms, "speedup": base / ms, "low_ms": ms, "high_ms": ms}
            facts["outcome"] = "faster" if ms < base else "unchanged"
            if known[name].parent in names:
                facts["helps"] = ms < true_ms(known[known[name].parent].options)
            known[name] = replace(known[name], state="measured", **facts)
        return tuple(known.values())

    def find(self, run, variant):
        rows = [
            finding(title, remedy=name)
            for name, title in CAUSES.items()
            if name not in variant.options.rewrite
        ]
        return SimpleNamespace(opportunities=rows, has_layers=False)


@pytest.fixture
def landscape(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return Landscape(monkeypatch)


def run_search(**options):
    return wb.optimize("toy_cnn", options=wb.OptimizeOptions(budget_s=1e6, **options))


@needs("remedies")
def test_the_search_finds_the_best_with_a_third_of_the_measurements_of_an_enumeration(landscape):
    study = run_search()
    rewrites = [names for size in range(4) for names in itertools.combinations(CAUSES, size)]
    every = [
        wb.ExportOptions(dtype=dtype, rewrite=names)
        for dtype in FACTORS.keys() - {*CAUSES, "fp16w"}
        for names in rewrites
    ]
    allowed = [o for o in every if SQNR.get(o.dtype, 99.0) >= 20.0]
    best = min(allowed, key=true_ms)
    assert true_ms(study[study.best].options) <= 1.05 * true_ms(best)
    assert len(set(landscape.exported)) <= len(every) / 3
    assert {*study[study.best].options.rewrite} - {*QUANTISER_REWRITES} == {"mean", "slices"}
    assert study[study.whole].options.dtype == "int8dyn"
    recipe = load_recipe(RECIPE)
    assert recipe.export == study[study.best].options
    assert len(recipe.changes) >= 2 and "speed of the baseline" not in recipe.changes[0]


@needs("remedies")
def test_failures_and_wrong_outputs_are_rows_that_are_never_recommended(landscape):
    study = run_search()
    failed = [v for v in study.variants if v.state == "failed"]
    assert [v.options.dtype for v in failed] == ["fp16w"]
    assert "gives up" in failed[0].reason
    table = tabulate_variants(study).set_index("name")
    assert "gives up" in table.loc[failed[0].name, "note"]
    wrong = next(v for v in study.variants if v.options.dtype == "int8")
    assert wrong.state == "measured" and wrong.speedup > study[study.whole].speedup
    assert wrong not in pick_best(study) and "SQNR 5.0 dB" in table.loc[wrong.name, "note"]


def test_a_program_that_crashes_the_runner_is_a_row_and_the_others_are_measured(landscape):
    landscape.crashes = "-bf16"
    study = run_search()
    (crashed,) = [v for v in study.variants if v.options.dtype == "bf16"]
    assert crashed.state == "failed" and "crashed" in crashed.reason
    assert study[study.best].options.dtype == "int8dyn"
    assert {v.options.dtype for v in study.variants if v.state == "measured"} >= {"fp16", "int8"}
    landscape.crashes = "-fp32"
    with pytest.raises(RunnerError):
        run_search(min_sqnr_db=10.0)


@needs("remedies")
def test_an_interrupted_search_is_on_disk_and_can_be_run_again(landscape):
    landscape.stop_at = 15
    with pytest.raises(KeyboardInterrupt):
        run_search()
    interrupted = wb.read_study("out_toy_cnn")
    study = run_search()
    assert [v.name for v in study.variants][: len(interrupted.variants)] == [
        v.name for v in interrupted.variants
    ]
    assert true_ms(study[study.best].options) == pytest.approx(10.0 * 0.8 * 0.9 * 0.7)


def test_a_module_is_searched_for_under_its_class(landscape):
    net, limits = nn.Sequential(nn.Linear(4, 4)), wb.OptimizeOptions(budget_s=1e6)
    study = wb.optimize(net, torch.ones(1, 4), options=limits)
    recipe = load_recipe(Path("out_Sequential/optimize/recipe.yaml"))
    assert study.best and study.model == "Sequential" == recipe.model
    with pytest.raises(wb.WorkbenchError, match=r"no OptimizeOptions -> .* options=O"):
        wb.optimize("toy_cnn", limits)


@pytest.mark.parametrize(("graph", "count"), [("before", 0), ("after", 1), ("", 1)])
def test_a_search_for_a_program_says_if_its_model_is_another_one_by_now(landscape, graph, count):
    Path("net.pte").write_bytes(b"a program")
    facts = {"spec": "toy_cnn", "pte": "net.pte", "sha256": sha256_of(Path("net.pte"))}
    save_export(exported(graph="before", **facts), Path())
    landscape.program.export = exported(graph=graph)
    for _ in range(2):
        limits = wb.OptimizeOptions(budget_s=1e6)
        warnings = wb.optimize("net.pte", options=limits, root="out").warnings
        assert len(warnings) == count
    assert all(text.startswith("the baseline against net.pte: ") for text in warnings)


def test_only_what_the_last_round_measured_again_is_recommended(landscape):
    landscape.luck = 1.5
    study = run_search()
    luckiest = max(study.variants, key=lambda v: v.speedup or 0.0)
    assert study.best != luckiest.name
    assert study[study.best].latency_ms == true_ms(study[study.best].options)


@needs("remedies")
def test_the_budget_is_the_time_that_passes_and_what_was_not_tried_is_named(landscape):
    """What findings suggest comes first, before dtypes that nothing is known of."""
    landscape.export_s = 20.0
    study = wb.optimize("toy_cnn", options=wb.OptimizeOptions(budget_s=180.0))
    assert landscape.clock <= 180.0 and study.spent_s == landscape.clock
    tried = [v for v in study.variants if v.state == "measured"]
    assert len(tried) > 1 and {"slices", "mean"} & {*tried[1].options.rewrite}
    untried = [v.name for v in study.variants if v.state == "planned"]
    assert untried and all(name in study.conclusion for name in untried)
    assert "not tried within the budget" in str(wb.show(study))
    landscape.export_s = 0.0
    assert not [v for v in run_search().variants if v.state == "planned"]


def test_a_budget_that_ends_before_the_first_variant_concludes_nothing(landscape):
    landscape.export_s = 20.0
    study = wb.optimize("toy_cnn", options=wb.OptimizeOptions(budget_s=40.0))
    assert len(landscape.measured) == 1 and len(landscape.exported) == 1
    assert study.conclusion.startswith("tried nothing: the budget ended before the first")
    landscape.clock = 0.0
    assert wb.optimize("toy_cnn", options=wb.OptimizeOptions(budget_s=1e4)).best


def test_nothing_is_recommended_if_nothing_helped(landscape, monkeypatch):
    monkeypatch.setitem(FACTORS, "int8dyn", 1.5)
    monkeypatch.setattr(search.Search, "propose_rewrites", lambda self: [])
    study = run_search(min_sqnr_db=20.0)
    assert study.best == "" and study.conclusion.startswith("nothing helped")
    assert not RECIPE.exists()


@needs("targets")
def test_an_emulated_target_has_no_times_to_search_by(landscape):
    with pytest.raises(UsageError, match="--target qemu: an emulated CPU has no times"):
        run_search(target="qemu")


@needs("remedies")
def test_a_study_is_shown_and_a_foreign_file_is_not(landscape, tmp_path):
    study = run_search()
    text = str(wb.show(study))
    assert study.best in text
    assert study.conclusion in text
    assert "latency" in wb.plot_variants(study).alt_text
    assert wb.read_study("out_toy_cnn") == study
    with pytest.raises(UsageError, match="no optimisation here"):
        wb.read_study(tmp_path / "elsewhere")
    (tmp_path / "optimize.json").write_text(json.dumps({"model": "x"}))
    with pytest.raises(StoreError, match="not a Study record"):
        wb.read_study(tmp_path)


def test_the_study_of_another_model_of_that_name_is_none_of_a_run(tmp_path):
    run = put(tmp_path, "run", net("mlp"), 1.0)
    for graph in ("linear", "mlp"):
        base = Variant("the baseline", wb.ExportOptions(), sha256=net(graph).sha256)
        study = Study("Net", wb.OptimizeOptions(), variants=(base,))
        (tmp_path / "optimize.json").write_text(to_json(study))
        assert (wb.find_study(wb.open_run(run)) is not None) == (graph == "mlp")


def test_the_name_of_a_variant_covers_no_other_name_or_dot():
    study = wb.read_study(wb.sample_file("out_squeezesam"))
    figure = wb.plot_variants(study)
    assert_tidy(figure)
    (axis,), boxes = figure.axes, texts_of(figure)
    names = {re.split("[ :]", text.get_text())[0]: box for text, box in boxes.items()}
    assert f"{study.best} (recommended): " in figure.alt_text
    assert {study.best, study.variants[0].name} <= names.keys()
    assert len(names.keys() & {variant.name for variant in study.variants}) >= 5
    dots = [each for each in axis.collections if each.get_gid()]
    assert len(dots) == sum(variant.latency_ms is not None for variant in study.variants)
    for dot in axis.transData.transform([each.get_offsets()[0] for each in dots]):
        assert not any(box.contains(*dot) for box in names.values())


def test_rows_of_an_old_document_that_are_no_rows_are_refused(tmp_path):
    path = tmp_path / "study.json"
    path.write_text(json.dumps({"schema_version": 2, "ladder": ["sme2"]}))
    with pytest.raises(wb.WorkbenchError):
        wb.read_study(path)


@pytest.mark.cases
def test_a_module_is_optimised_and_a_run_of_one_is_not(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    net, x = nn.Sequential(nn.Linear(64, 64), nn.ReLU()), torch.randn(1, 64)
    few = {"runs": 4, "processes": 2, "evidence": False, "cold_start": False, "roof": False}
    run = wb.measure(net, x, wb.MeasureOptions(toggle="none", **few))
    study = wb.optimize(net, x, options=wb.OptimizeOptions(budget_s=8.0, dtypes=("int8dyn",)))
    base, other = study.variants[:2]
    assert base.state == "measured" and other.options.dtype == "int8dyn"
    assert other.state in ("measured", "exported") or "not tried" in other.reason  # when busy
    with pytest.raises(wb.WorkbenchError, match="name is not recorded -> give the model itself"):
        wb.optimize(run)


def test_a_study_shows_its_conclusion_in_a_notebook():
    study = wb.read_study(wb.sample_file("out_squeezesam"))
    assert study.conclusion in html.unescape(study._repr_html_()) and len(repr(study)) < 300


@pytest.mark.parametrize("seed", range(3))
def test_a_damaged_study_is_refused_in_one_line(seed, tmp_path):
    content = next(wb.sample_file("out_squeezesam").rglob("optimize.json")).read_bytes()
    kind = mutants.Kind("optimize.json", lambda folder: [content], wb.read_study)
    ends, failures = mutants.fuzz(kind, seed, range(100), tmp_path)
    assert not failures and sum(ends.values()) == 100


def test_layers_are_in_the_dtype_of_a_variant_the_noisiest_first():
    study = wb.read_study(wb.sample_file("out_squeezesam"))
    (axis,) = wb.plot_noise(study, study["05-int8"], top=5).axes
    layers = [label.get_text() for label in axis.get_yticklabels()]
    noise = {name[5:]: power for name, power in study.layers.items() if name[:5] == "int8:"}
    assert layers == sorted(filter(None, noise), key=noise.get, reverse=True)[:5]
    assert all(text.get_text().endswith("int8") for text in axis.texts)
