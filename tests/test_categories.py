import importlib.util
import json
import shutil
import time
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
from recorded import recorded

import workbench as wb

GOLDEN = [
    tuple(line.split("\t"))
    for line in (Path(__file__).parent / "data" / "op_names.txt").read_text().splitlines()
    if not line.startswith("#")
]
CATEGORIES = ["Convolution", "GEMM", "Data Movement", "Elementwise", "Other"]
KINDS = ["delegated", "portable", "delegate_overhead", "call_overhead", "framework"]
UNKNOWN = {"Invalid", "17", "conv_relu_fused", "native_call_my_custom_op.out"}


def categorize(name, kind="delegated", categories=""):
    """Category, family and rule of an operator."""
    run = wb.open_run(wb.sample_run("Ready"), categories=categories) if categories else recorded()
    return pd.Series(run.scheme.place(name, kind), ["category", "family", "rule"])


def rules_of(run=None):
    return pd.DataFrame((run or recorded()).scheme.rules)


def test_every_known_name_has_its_place():
    known = pd.DataFrame(GOLDEN, columns=["kind", "operator", "category", "family"])
    placed = pd.DataFrame([categorize(row.operator, row.kind) for row in known.itertuples()])
    assert placed["category"].tolist() == known["category"].tolist()
    assert placed["family"].tolist() == known["family"].tolist()
    assert ((known["family"] == "unknown") == known["operator"].isin(UNKNOWN)).all()
    rules = rules_of()
    reached = rules["name"].isin(placed["rule"]) | (rules["family"] == "unknown")
    assert reached.all(), rules[~reached]


@pytest.mark.parametrize("kind", KINDS)
def test_any_name_has_a_place(kind):
    names = ["", " ", "#3", "(", "a (b", "a\nb", "x" * 10_000]
    assert {categorize(name, kind).category for name in names} <= set(CATEGORIES)


def test_a_kind_that_the_ledger_does_not_have():
    with pytest.raises(Exception, match="did you mean 'portable'"):
        categorize("x", "portabel")


def test_the_table_is_sound():
    table = rules_of()
    assert list(table.columns) == ["name", "operators", "category", "kind", "family", "why"]
    assert table["name"].is_unique
    assert set(table["category"]) == set(CATEGORIES)
    assert table["why"].str.len().gt(0).all()
    families = table.groupby("family")["category"].nunique()
    assert families.eq(1).all(), "a family belongs to one category"


def scheme_of(folder, text):
    path = folder / "mine.yaml"
    path.write_text(text)
    return path


def test_rules_of_a_user_come_first_and_ours_place_the_rest(tmp_path):
    text = """
    rules:
    - {name: norms move data, category: Data Movement, operators: ["*NORM*"]}
    - {name: fp adds, kind: delegated, category: GEMM, operators: Add}
    """
    mine = scheme_of(tmp_path, text)
    place = partial(categorize, categories=mine)
    norm = place("native_call__native_batch_norm_legit_no_training.out", "portable")
    assert (norm.category, norm.family, norm.rule) == (
        "Data Movement", "normalisation", "norms move data",
    )  # fmt: skip
    assert place("Add (ND) #4").category == "GEMM"
    assert place("native_call_add.out", "portable").category == "Elementwise"
    assert place("norm", "framework").category == "Other", "only operators have names"
    assert place("Clamp (NC)").equals(categorize("Clamp (NC)"))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("rules: [{name: a, operators: [x], category: Conv}]", "unknown category 'Conv'"),
        ("rules: [{name: a, operators: [x], category: Other, kind: y}]", "unknown kind of ledger"),
        (
            "rules: [{name: a, operators: [], category: Other}]",
            "rule 1: needs a name and operators",
        ),
        ("rules: [{name: '', operators: [x], category: Other}]", "needs a name"),
        (
            "rules: [{name: a, operators: [x], category: Other, pattern: y}]",
            "unknown key 'pattern'",
        ),
        ("rules: [{name: a, operators: [7], category: Other}]", "mine.yaml"),
        ("rules: 7", "mine.yaml"),
        (
            f"rules: [{{name: a, operators: [{'x' * 101}], category: Other}}]",
            "up to 100 characters",
        ),
        ("rules: &r [*r]", "aliases"),
        ("rules: [", "not YAML"),
        ("- a", "expected a mapping"),
        ("x" * 200_000, "too large"),
    ],
)
def test_a_bad_scheme_is_refused_in_one_line(tmp_path, text, problem):
    with pytest.raises(Exception, match=problem) as caught:
        wb.open_run(wb.sample_run(), categories=scheme_of(tmp_path, text))
    assert "mine.yaml" in str(caught.value) and "\n" not in str(caught.value)


def test_an_unknown_scheme_is_named_with_the_known_ones(tmp_path):
    with pytest.raises(Exception, match=r"unknown categories 'kitt' .* workbench or kit"):
        wb.open_run(wb.sample_run(), categories="kitt")
    with pytest.raises(Exception, match="No such file"):
        wb.open_run(wb.sample_run(), categories=tmp_path / "none.yaml")


def test_no_pattern_of_a_user_can_hang(tmp_path):
    patterns = ", ".join(f"'{'*a' * 48}{n}b'" for n in range(300))
    text = f"rules: [{{name: slow, operators: [{patterns}], category: Other}}]"
    mine = scheme_of(tmp_path, text)
    start = time.process_time()
    assert categorize("a" * 100_000, categories=mine)["rule"] == "unknown operator"
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    ("kind", "name", "category"),
    [
        ("delegated", "Convolution (NHWC, PF32) IGEMM", "Convolution"),
        ("delegated", "Convert (NC, F32, QD8)", "Convolution"),  # it begins with "conv"
        ("delegated", "Fully Connected (NC, PF32) GEMM", "GEMM"),
        ("delegated", "Fully Connected (NC, PF32)", "Other"),
        ("delegated", "Resize Bilinear (NHWC)", "GEMM"),  # it contains "linear"
        ("delegated", "Transpose (ND, X32) Transpose", "Data Movement"),
        ("delegated", "HardSwish (NC)", "Elementwise"),
        ("delegated", "Softmax (NC, F32)", "Other"),
        ("portable", "native_call__native_batch_norm_legit_no_training.out", "Other"),
        ("portable", "native_call_permute_copy.out", "Data Movement"),
        ("portable", "native_call_cat.out", "Other"),
        ("portable", "native_call_addmm.out", "Elementwise"),
        ("delegate_overhead", "DELEGATE_CALL", "Other"),
    ],
)
def test_the_scheme_of_the_kit(kind, name, category):
    placed = categorize(f"{name} #3", kind, "kit")
    assert placed.category == category
    assert placed.family == categorize(name, kind).family


def test_the_scheme_of_the_kit_is_that_of_its_scripts(profiling_kit):
    script = profiling_kit / "model_profiling" / "scripts" / "generate_report.py"
    spec = importlib.util.spec_from_file_location("kit_report", script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    theirs, place = module.categorize_op, partial(categorize, categories="kit")
    differ = {name: (place(name, kind).category, theirs(name)) for kind, name, *_ in GOLDEN}
    assert not {name: pair for name, pair in differ.items() if len(set(pair)) > 1}


@pytest.mark.whole
def test_a_run_opened_with_other_categories_sums_to_the_same_time(tmp_path):
    run = recorded("squeezesam")
    kit = wb.open_run(run, categories="kit")
    assert wb.open_run(run) is run and kit.record is run.record
    ours, theirs = run.subject, kit.subject
    assert theirs.categories["mean_ms"].sum() == pytest.approx(ours.categories["mean_ms"].sum())
    by_category = theirs.operators.groupby("category")["mean_ms"].sum()
    for frame in (theirs.categories, theirs.spans.groupby("category", observed=True)["own_ns"]):
        assert set(getattr(frame, "category", pd.DataFrame(frame.sum()).index)) - {""} == set(
            CATEGORIES
        )
    shown = theirs.categories.set_index("category")["mean_ms"]
    pd.testing.assert_series_equal(by_category, shown[by_category.index], check_names=False)
    resized = theirs.operators[theirs.operators["operator"].str.startswith("Resize")]
    assert set(resized["category"]) == {"GEMM"} and set(resized["family"]) == {"resize"}
    assert list(ours.findings["cause"]) == list(theirs.findings["cause"])
    assert list(kit.compare().categories["name"]) == list(CATEGORIES)
    described = kit.description.set_index("what")["value"]
    assert described["categories"] == "kit"


@pytest.mark.whole
def test_files_written_with_other_categories_say_so_and_are_valid(cli, tmp_path):
    folder = shutil.copytree(wb.sample_run("toy_cnn"), tmp_path / "run")
    assert cli("analyze", folder, "--categories", "kit")[0] == 0
    summary = json.loads((folder / "analysis_summary.json").read_text())
    assert summary["categories"] == "kit"
    mine = scheme_of(tmp_path, "rules: [{name: all, operators: ['*'], category: Other}]")
    assert cli("analyze", folder, "--categories", mine)[0] == 0
    assert json.loads((folder / "analysis_summary.json").read_text())["categories"] == "mine.yaml"


@pytest.mark.cases
def test_the_report_of_a_profile_has_the_categories_that_were_asked_for(conv_pte, tmp_path):
    pte = shutil.copy(conv_pte, tmp_path)
    brief = wb.MeasureOptions(
        "none", runs=4, processes=2, evidence=False, cold_start=False, roof=False
    )
    run = wb.profile(pte, measure=brief, categories="kit", report=True, root=tmp_path)
    described = run.description.set_index("what")["value"]
    assert described["categories"] == "kit"
    row = next(
        line
        for line in (run.path / "report.md").read_text().splitlines()
        if "| categories |" in line
    )
    assert "kit" in row


def test_what_xnnpack_calls_an_invalid_operator_has_the_name_of_its_function():
    m = recorded("mobilenet_v3_small_int8").subject
    table = str(wb.show(m, "operators", top=len(m.operators)))
    assert "Invalid" not in table
    assert "| Hardswish | Elementwise | 19 |" in table
    assert "| features.0.2 · Hardswish #1 |" in table
