"""Several programs in one run: planned, measured interleaved, compared, and kept in its folder."""

import contextlib
import json
import os
import re
import shutil
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from changed_runs import edit_json

import workbench as wb
from workbench import store
from workbench.errors import StoreError, UsageError, WorkbenchError
from workbench.export.program import Program
from workbench.records.exports import Tensor
from workbench.records.runs import PlannedProgram
from workbench.report.artifacts import check_run, write_artifacts
from workbench.report.gate import compare_named
from workbench.report.opened import make_page
from workbench.run.isa import Isa
from workbench.run.plan import choose_experiments, name_uniquely
from workbench.run.tensor_files import compare_output_bytes

ISA = Isa("x86_64", ("avx512f", "avx2"), {"avx2": ("avx512f",), "native": ()}, "ok")
BRIEF = wb.MeasureOptions(runs=4, warmup=1, processes=2, evidence=False)


@pytest.fixture(scope="module")
def run(programs, tmp_path_factory):
    return wb.measure(programs, options=BRIEF, root=tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def bundles(conv_pte, tmp_path_factory):
    """A program bundled with an input and its output, and with another output."""
    import torch
    from executorch.devtools import BundledProgram
    from executorch.devtools.bundled_program.config import MethodTestCase, MethodTestSuite
    from executorch.devtools.bundled_program.serialize import (
        serialize_from_bundled_program_to_flatbuffer,
    )
    from executorch.extension.pybindings.portable_lib import _load_for_executorch

    image, folder = torch.rand(1, 3, 64, 64), tmp_path_factory.mktemp("bundles")
    (output,) = _load_for_executorch(str(conv_pte)).run_method("forward", (image,))
    for name, expected in (("right", output), ("wrong", -output)):
        case = MethodTestCase([image], [expected])
        bundle = BundledProgram(None, [MethodTestSuite("forward", [case])], str(conv_pte))
        content = serialize_from_bundled_program_to_flatbuffer(bundle)
        (folder / f"{name}.bp").write_bytes(content)
    return folder


@pytest.mark.whole
@pytest.mark.parametrize(("name", "status"), [("right", "ok"), ("wrong", "fail")])
def test_a_bundled_program_runs_on_its_inputs_and_gives_its_outputs(
    bundles, conv_pte, tmp_path, name, status
):
    options = replace(BRIEF, runs=1, processes=1, toggle="none", cold_start=False)
    run = wb.measure(str(bundles / f"{name}.bp"), options=options, root=tmp_path)
    plan = run.record.plan
    assert plan.sha256 == store.sha256_of(conv_pte)
    assert (plan.model, plan.input_source) == (name, "the first case of the bundled program")
    checks = run.checks.set_index("check")["status"]
    assert checks["outputs of the bundled program"] == status


@pytest.mark.whole
@pytest.mark.parametrize(
    "size", [*(pytest.param(size, marks=pytest.mark.cases) for size in (0, 4, 5000)), 100, -40]
)
def test_a_damaged_bundle_is_one_line(bundles, tmp_path, size):
    damaged = tmp_path / "net.bp"
    damaged.write_bytes((bundles / "right.bp").read_bytes()[:size])
    with pytest.raises(WorkbenchError, match=r"net\.bp: .*bundle it again, or run the \.pte"):
        wb.open_program(damaged)


@pytest.mark.whole
def test_programs_of_other_layouts_get_the_same_values(tmp_path):
    import torch

    from workbench.export.artifact import export_model
    from workbench.models.loader import LoadedModel

    class Square(torch.nn.Module):
        def forward(self, x):
            return x * x

    model = LoadedModel("square", Square(), (torch.arange(24.0).reshape(1, 2, 3, 4),))
    ptes = [
        export_model(
            model,
            options=wb.ExportOptions(backend="portable", channels_last=last),
            root=tmp_path / str(last),
        ).path
        for last in (False, True)
    ]
    brief = replace(BRIEF, toggle="none", processes=1, cold_start=False)
    agreements = wb.measure(ptes, options=brief, root=str(tmp_path)).record.agreements
    assert len(agreements) == 2
    assert all(found.agree and not found.note for found in agreements)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("graph", "words"),
    [("of both", "outputs differ"), pytest.param("", "%", marks=pytest.mark.cases)],
)
def test_three_restarts_give_a_first_verdict(tmp_path, graph, words):
    import torch

    class Scale(torch.nn.Module):
        def __init__(self, factor):
            super().__init__()
            self.factor = factor

        def forward(self, x):
            return self.factor * x

    programs = []
    for factor in (1.5, 3.0):
        made = wb.export_model(Scale(factor), torch.ones(1, 4), root=tmp_path / str(factor))
        if graph:  # which only a wrong program can have
            edit_json(store.export_record_path(made.path), lambda it: it.update(graph=graph))
        programs.append(wb.open_program(made.path))
    brief, said = replace(BRIEF, toggle="none", processes=4, cold_start=False, roof=False), []
    wb.profile(programs, measure=brief, progress=lambda text, _: said.append(text))
    (number,) = (n for n, text in enumerate(said) if "so far: " in text)
    assert words in said[number]
    restarts = [n for n, text in enumerate(said) if re.search(r"process \d/4$", text)]
    assert restarts[2] < number < restarts[3]


MODEL = """
import torch

class Net(torch.nn.Linear):
    def __init__(self):
        super().__init__(4, 3)

EXAMPLE_INPUTS = (torch.ones(1, 4),)
"""


@pytest.fixture
def watched():
    """Counts how often files are opened for reading and what commands are started."""
    opened, started, active = Counter(), [], [True]

    def count(event, args):
        if active and event == "open" and not isinstance(args[0], int):
            reads = isinstance(args[1], str) or not args[2] & (os.O_WRONLY | os.O_RDWR)
            opened[Path(os.fsdecode(args[0])).suffix] += bool(reads)
        elif active and event == "subprocess.Popen":
            started.append(list(map(str, args[1])))

    sys.addaudithook(count)
    yield SimpleNamespace(opened=opened, started=started)
    active.clear()


@pytest.mark.whole
def test_a_program_is_opened_and_hashed_once(conv_pte, tmp_path, watched):
    pte = Path(shutil.copy(conv_pte, tmp_path / "x.pte"))
    os.utime(pte, (1, 1))
    watched.opened.clear()
    program = wb.open_program(pte)
    assert watched.opened[".pte"] == 1
    assert wb.open_program(program) is program
    assert wb.open_program(pte) == program and watched.opened[".pte"] == 2, "hashed once"
    assert program.methods == ("forward",)
    watched.opened.clear()
    brief = replace(BRIEF, toggle="none", processes=2, cold_start=False)
    run = wb.measure(program, options=brief, root=tmp_path)
    assert run.record.state == "complete"
    assert watched.opened[".pte"] <= 2, "hashed before and after the measurement"


@pytest.mark.cases
def test_a_profile_opens_hashes_and_asks_once(tmp_path, watched, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(MODEL)
    brief = replace(BRIEF, processes=2, roof=False)
    run = wb.profile("mine.py:Net", None, wb.ExportOptions(backend="portable"), brief)
    assert run.record.export.sha256 == run.record.plan.sha256
    assert watched.opened[".pte"] <= 2, "hashed once its time can no longer hide a change"
    for flag in ("--version", "--print_isa"):
        asked = [c for c in watched.started if c[-1] == flag and "runner" in c[0]]
        assert len(asked) == 1, flag


def test_a_program_describes_itself(conv_pte, tmp_path):
    pte = Path(shutil.copy(conv_pte, tmp_path / "<b>.pte"))
    program = wb.open_program(str(pte))
    assert repr(program) == f"<Program {pte}, 0.0850 MB>"
    page = make_page("explorer", pte)
    assert "&lt;b&gt;.pte" in page and "<b>" not in page and "forward" in page
    assert program.root == Path("out_b") and program.export is None
    assert Path(program) == pte


@pytest.mark.parametrize("change", [b"", b"more"])
def test_a_program_with_other_bytes_is_noticed_before_the_next_step(conv_pte, tmp_path, change):
    pte = Path(shutil.copy(conv_pte, tmp_path / "x.pte"))

    def write(text, fraction):
        if "process 2" in text:
            content = pte.read_bytes() + change
            pte.unlink()  # another file, of another time
            pte.write_bytes(content)

    brief = replace(BRIEF, toggle="none", cold_start=False)
    noticed = pytest.raises(StoreError, match="changed since the run was planned")
    with noticed if change else contextlib.nullcontext():
        run = wb.measure(pte, options=brief, root=tmp_path, progress=write)
        assert run.record.state == "complete"


def test_a_program_is_profiled_without_export_options(conv_pte):
    with pytest.raises(UsageError, match="is exported already"):
        wb.profile(conv_pte, dtype="fp16")


@pytest.mark.cases
def test_programs_are_experiments_of_one_plan(run, programs):
    assert run.experiments == ["net", "net-2", "pair"]
    assert [m.program.pte for m in run.measurements if not m.control] == list(map(str, programs))
    pairs = [(ab.baseline.name, ab.candidate.name) for ab in run.comparisons]
    assert pairs == [("net", "net-2"), ("net", "pair")]
    assert run["control"].program == run["net"].program
    assert {e.isa for e in run.record.plan.experiments} == {"native"}


@pytest.mark.cases
def test_programs_with_other_inputs_take_their_own_and_say_so(run):
    same, other = (run[name].program for name in ("net-2", "pair"))
    assert same.inputs == run.record.plan.inputs
    assert [t.dtype for t in other.inputs] == ["float32", "int64"]
    checks = run.checks.set_index("check")
    found = checks.loc["outputs of pair and net agree, 1 thread"]
    assert found["status"] == "note"
    assert "their inputs differ: float32 1x3x64x64 and float32 2x3" in found["evidence"]
    assert checks.loc["outputs of net-2 and net agree, 1 thread", "status"] == "ok"
    same = checks.loc["programs differ in net-2 against net, 1 thread"]
    assert "same content" in same["evidence"]


@pytest.mark.cases
def test_the_verdict_names_both_programs(run):
    first, second = run.comparisons
    assert first.text.startswith("net-2 against net: ")
    assert second.verdict.outcome == "faster"
    assert second.text.startswith("pair against net: ")
    assert not second.wrong, "outputs of two models may differ"


@pytest.mark.cases
def test_operators_of_other_programs_are_paired_not_mixed_up(run):
    same, other = (ab.operators for ab in run.comparisons)
    assert (same["key"] == same["candidate_key"]).all()
    assert same["baseline_ms"].notna().all()
    candidates = run["pair"].operators
    assert set(other["candidate_key"].dropna()) == set(candidates["key"])


@pytest.mark.cases
def test_every_document_and_page_is_written(run):
    write_artifacts(run)
    page, *_ = wb.make_report(run)
    assert "net, net, pair" in page.read_text()
    checks = check_run(run)
    assert not (checks["status"] == "fail").any(), checks[checks["status"] == "fail"]
    for part in run.record.plan.all_programs:
        assert store.kept_layers(run.path, part.name).exists()
    programs = [row.value for row in run.description.itertuples() if "program" in row.what]
    assert len(programs) == 3


@pytest.mark.cases
def test_the_gate_takes_programs_of_one_run(run):
    names = [f"{run.path}:net", f"{run.path}:pair"]
    compared = compare_named(names, by="operator", limits={"latency": 0.05})
    assert compared.passed
    assert set(compared.aligned["level"]) == {"e2e", "operator"}


@pytest.mark.cases
def test_a_finished_run_of_the_same_programs_is_reused(run, programs):
    options = replace(BRIEF, against=tuple(map(str, programs[1:])))
    root = run.path.parents[1]
    assert wb.measure(programs[0], options=options, root=root, again=False).path == run.path
    fewer = replace(options, against=options.against[:1], processes=1)
    assert wb.measure(programs[0], options=fewer, root=root, again=False).path != run.path


def test_names_of_programs_are_unique():
    opened = [Program(Path(name), "") for name in ("a/x.pte", "b/x.pte", "x y.pte")]
    assert name_uniquely(opened) == ["x", "x-2", "x_y"]


def test_a_toggle_that_was_asked_for_is_measured_for_every_program():
    options = wb.MeasureOptions(toggle="avx512")
    name, experiments, pairs = choose_experiments(options, ISA, ["a", "b"])
    assert name == "avx512"
    assert [(e.name, e.program, e.isa) for e in experiments] == [
        ("a_avx512_on", "", "native"),
        ("a_avx512_off", "", "avx2"),
        ("b_avx512_on", "b", "native"),
        ("b_avx512_off", "b", "avx2"),
        ("control", "", "native"),
    ]
    assert [(p.baseline, p.candidate) for p in pairs] == [
        ("a_avx512_on", "b_avx512_on"),
        ("a_avx512_off", "a_avx512_on"),
        ("b_avx512_off", "b_avx512_on"),
    ]


@pytest.mark.parametrize(
    ("options", "names", "words"),
    [
        (wb.MeasureOptions(isa_ladder=True), ["a", "b"], "--isa-ladder measures one program"),
        (wb.MeasureOptions(), ["a", "control"], "two experiments would be called control"),
    ],
)
def test_what_cannot_be_planned_is_refused(options, names, words):
    with pytest.raises(UsageError, match=words):
        choose_experiments(options, ISA, names)


@pytest.mark.cases
def test_a_manifest_may_not_name_files_elsewhere(run, tmp_path):
    folder = Path(shutil.copytree(run.path, tmp_path / "run"))
    content = json.loads((folder / store.MANIFEST).read_text())
    (program, *_), experiment = content["plan"]["programs"], content["plan"]["experiments"][1]
    name = program["name"]
    program["name"] = experiment["program"] = "../../x"
    (folder / store.MANIFEST).write_text(json.dumps(content))
    with pytest.raises(StoreError, match="is no valid name"):
        wb.open_run(folder)
    program["name"], experiment["program"] = name, "missing"
    (folder / store.MANIFEST).write_text(json.dumps(content))
    with pytest.raises(StoreError, match="unknown program 'missing'"):
        wb.open_run(folder)


def test_outputs_of_two_dtypes_are_held_to_the_coarser_one():
    import numpy as np

    exact = np.random.default_rng(0).standard_normal(1000)
    coarse = exact + 0.1 * np.random.default_rng(1).standard_normal(1000)
    options = {"names": ("a", "b"), "threads": 1, "output": 0, "dtype": "float32"}
    found = compare_output_bytes(exact, coarse, **options, least_sqnr_db=10.0)
    assert found.agree
    assert found.sqnr_db == pytest.approx(20, abs=0.5)
    assert not compare_output_bytes(exact, coarse, **options, least_sqnr_db=40.0).agree
    assert not compare_output_bytes(exact, coarse, **options).agree


@pytest.mark.parametrize(
    ("options", "least"),
    [
        ({"quantized": "15 of 17 convolutions and matrix products"}, 30),
        ({"module_dtypes": "classifier=int8dyn"}, 30),
        ({"rewritten": "nothing"}, None),
    ],
)
def test_a_quantized_program_may_round_differently_at_another_level(options, least):
    from workbench.run.tensor_files import least_sqnr

    program = PlannedProgram("", "a.pte", "0" * 64, "a", "a")
    run = SimpleNamespace(export_of=lambda _: SimpleNamespace(options=options, fidelity=()))
    assert least_sqnr(run, program, program) == least


def test_inputs_are_shared_where_dtype_and_shape_agree(programs):
    from workbench.run.plan import plan_program

    one, other = map(wb.open_program, programs[:2])
    saved = Tensor("float32", (1, 3, 64, 64), "x.bin", "0" * 64)
    first = replace(plan_program("", one), inputs=(saved,), input_source="a photograph")
    taken = [Tensor("float32", (1, 3, 64, 64), dynamic=True)]
    found = plan_program("b", other, taken, like=(first, taken))
    assert isinstance(found, PlannedProgram)
    assert found.input_source == "a photograph"
    assert found.inputs[0].file == str(programs[0].parent / "x.bin")
    assert found.inputs[0].sha256 == saved.sha256
    small = plan_program("b", other, [Tensor("float32", (1, 3, 32, 32))], like=(first, taken))
    assert small.inputs[0].file == ""
    assert "random" in small.input_source


@pytest.mark.whole
def test_separate_runs_of_two_programs_name_the_command_that_interleaves_them():
    names = [f"{wb.sample_run()}:avx512_on", f"{wb.sample_run('squeezesam')}:native"]
    found = compare_named(names, across=["program", "build"])
    (note,) = found.notes
    plans = [wb.open_run(name.rpartition(":")[0]).record.plan for name in names]
    assert note.endswith(f"workbench run {plans[0].pte} --against {plans[1].pte}")
    assert not compare_named([names[0], names[0].replace("_on", "_off")]).notes


@pytest.mark.cases
def test_a_saved_baseline_knows_each_program(run, tmp_path):
    manifest = run.path / store.MANIFEST
    assert compare_named([str(run.path)], baseline=manifest, limits={"latency": 0.1}).passed
    content = json.loads(manifest.read_text())
    (pair,) = (each for each in content["plan"]["programs"] if each["name"] == "pair")
    pair["sha256"] = "ab" * 32
    (tmp_path / "main.json").write_text(json.dumps(content))
    with pytest.raises(WorkbenchError, match=r"differ in program: .* abababababab"):
        compare_named([f"{run.path}:pair"], baseline=tmp_path / "main.json")
