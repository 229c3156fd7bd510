"""Programs of one model, which its traced graph tells; never its name, shapes or file."""

import json
import shutil
from dataclasses import replace

import pytest
from changed_runs import with_record
from findings_table import tabulate
from made_models import BRIEF, net, put
from recorded import recorded
from run_folder import open_made_run

import workbench as wb

TWO, UNKNOWN = (
    "two models: operators, weights or shapes of inputs differ",
    "not known whether they are of",
)


def rules(run_dir):
    findings = tabulate(wb.open_run(run_dir))
    return findings.set_index("rule").loc[lambda table: table.index == "dtype"]


@pytest.fixture
def folder(tmp_path):
    """Two files whose class is called Net, of inputs of one shape, in three dtypes."""
    for dtype, ms in (("fp32", 0.1), ("int8", 0.05), ("bf16", 0.2)):
        put(tmp_path / "out_Net", f"linear-{dtype}", net("linear", dtype), ms)
    for dtype, ms in (("fp32", 10.0), ("bf16", 147.0)):
        put(tmp_path / "out_Net", f"mlp-{dtype}", net("mlp", dtype), ms)
    return tmp_path / "out_Net" / "runs"


def test_a_finding_speaks_of_no_other_model_of_that_name(folder, cli):
    code, text, _ = cli("findings", folder / "mlp-bf16")
    assert code == 0 and "fp32 takes 10.0 ms instead of 147 ms (separate runs)" in text
    assert "0.1" not in text and "int8 takes" not in text
    (slow,) = rules(folder / "linear-bf16").to_dict("records")
    assert slow["cause"].startswith("int8 takes") and slow["basis"] == "measured"
    assert slow["gain_ms"] == pytest.approx(0.15, rel=0.05)
    shutil.rmtree(folder / "mlp-fp32")
    assert rules(folder / "mlp-bf16").empty


@pytest.mark.parametrize("dtype", ["fp32", "int8", "bf16"])
def test_an_edited_class_is_another_model_in_every_dtype(tmp_path, dtype):
    """And so is one whose graph is unknown."""
    for graph in ("before", ""):
        for other in {"fp32", "int8", "bf16"} - {dtype}:
            put(tmp_path, f"{graph}-{other}", net(graph, other), 1.0)
    edited = put(tmp_path, "edited", net("after", dtype), 100.0)
    unknown = put(tmp_path, "unknown", net("", dtype), 100.0)
    for run_dir in (edited, unknown):
        found = tabulate(wb.open_run(run_dir))
        assert not (found["basis"] == "measured").any()
        assert not found["cause"].str.contains("separate runs").any()


@pytest.mark.parametrize(
    "changes",
    [
        {"rewrite": ("softmax",)},
        {"options": {"module_dtypes": "head=fp32"}},
        {"options": {"channels_last": "yes"}},
        {"backend": "portable"},
        {"versions": {"executorch": "1.5.0"}},
        {"problem": "SQNR -0.2 dB"},
    ],
    ids=str,
)
def test_a_gain_is_measured_only_if_nothing_but_the_dtype_differs(tmp_path, changes):
    own = put(tmp_path, "own", net("mlp"), 10.0)
    put(tmp_path, "other", net("mlp", "int8", **changes), 1.0)
    assert not (rules(own)["basis"] == "measured").any()


def test_only_runs_that_were_measured_alike_count_and_of_several_the_latest(tmp_path):
    own = put(tmp_path, "own", net("mlp"), 10.0)
    put(tmp_path, "threads", net("mlp", "int8"), {4: 1.0})
    put(tmp_path, "device", net("mlp", "int8"), 1.0, changes={"host": {"cpu": "another"}})
    put(tmp_path, "stopped", net("mlp", "int8"), 1.0, changes={"state": "incomplete"})
    assert not (rules(own)["basis"] == "measured").any()
    put(tmp_path, "early", net("mlp", "int8"), 9.0, changes={"started": "2025-01-01T00:00:00"})
    put(tmp_path, "late", net("mlp", "int8"), 5.0, changes={"started": "2026-02-01T00:00:00"})
    (found,) = rules(own).to_dict("records")
    assert found["gain_ms"] == pytest.approx(5.0, rel=0.02)


def test_a_verdict_says_whose_programs_they_are(tmp_path, cli):
    sides = [net("mlp"), net("mlp", created="later"), net("linear"), net("", created="then")]
    runs = [wb.open_run(put(tmp_path / f"{n}", "run", side, 10.0)) for n, side in enumerate(sides)]
    same, edited, unknown = (wb.compare(runs[0], other) for other in runs[1:])
    assert "model" not in same.text
    assert same.text.startswith("Net (after) against Net (before): ")
    assert edited.text.endswith(TWO) and UNKNOWN in unknown.text
    two = cli("compare", *(run.path for run in runs[:2]))
    assert two[0] == 0 and "side by side" not in two[1], "one file has replaced the other"
    assert wb.compare(runs[0].path, str(runs[1].path)).text == same.text
    assert cli("compare", *(run.path for run in runs))[0] == 2, "of several, it is said"
    with pytest.raises(wb.WorkbenchError, match="nope: no such file or folder"):
        wb.compare(runs[0], "nope")
    code, text, _ = cli("compare", *(run.path for run in runs), "--across", "program", "--by",
                        "category")  # fmt: skip
    assert code == 0
    assert [f"{runs[n].path} against {runs[0].path}: {what}" in text
            for n, what in ((1, ""), (2, TWO), (3, UNKNOWN))] == [False, True, True]  # fmt: skip


def test_a_program_that_was_renamed_is_the_same(tmp_path):
    first, second = (
        wb.open_run(put(tmp_path / pte, "run", replace(net("mlp"), pte=pte), 10.0))
        for pte in ("a.pte", "b.pte")
    )
    assert "model" not in wb.compare(first["on"], second["on"]).text


@pytest.mark.parametrize(
    ("graphs", "status", "text"),
    [(("mlp", "mlp"), "fail", ""), (("mlp", "linear"), "note", TWO), (("", ""), "note", UNKNOWN)],
)
def test_outputs_must_agree_if_both_programs_are_of_one_model(tmp_path, graphs, status, text):
    first, second = (net(graph, created=f"{n}") for n, graph in enumerate(graphs))
    made = open_made_run(tmp_path, {"off": 6.0, "on": 3.0}, export=first, **BRIEF)
    facts = {"name": "Net-2", "stem": "Net-2", "pte": second.pte, "sha256": second.sha256}
    planned = replace(made.subject.program, **facts)
    off, on, *_ = made.record.plan.experiments
    plan = replace(
        made.record.plan, programs=(planned,), experiments=(off, replace(on, program="Net-2")),
        pairs=(replace(made.record.plan.pairs[0], label="with Net-2 instead of Net"),),
    )  # fmt: skip
    differ = {"baseline": "off", "candidate": "on", "max_abs": 1.0, "scale": 1.0, "agree": False}
    apart = replace(recorded().record.agreements[0], **differ)
    run = with_record(made, plan=plan, exports={"Net-2": second}, agreements=(apart,))
    ab = run.compare()
    assert bool(ab.wrong) == (status == "fail") == ("no speed-up is claimed" in ab.text)
    row = run.checks.set_index("check").loc["outputs of on and off agree, 1 thread"]
    assert row["status"] == status and text in row["evidence"]


@pytest.mark.parametrize(("graph", "told"), [("sentences", True), ("another", False), ("", False)])
def test_a_layer_is_slower_only_than_the_same_model_in_another_runtime(graph, told):
    run = recorded("Sentences")
    exports = {name: replace(export, graph=graph) for name, export in run.record.exports.items()}
    own = replace(run.record.export, graph="sentences")
    findings = tabulate(with_record(run, export=own, exports=exports))
    rules = {*findings["rule"], *findings["also"].explode()}  # a cause tells what it explains
    assert ("other runtimes" in rules) == told


def test_a_combined_page_says_that_models_of_one_name_are_two(tmp_path, cli):
    names = [put(tmp_path / graph, "run", net(graph), 10.0) for graph in ("mlp", "linear")]
    assert cli("report", *names, "--out", "out")[0] == 0
    for name in ("combined_report.md", "combined_pipeline_summary.md"):
        assert TWO in (tmp_path / "out" / name).read_text()


def test_a_saved_baseline_is_known_to_be_of_the_model_or_not(tmp_path, cli):
    sides = [net("mlp"), net("mlp", created="later"), net("linear")]
    runs = [put(tmp_path / f"{number}", "run", side, 10.0) for number, side in enumerate(sides)]
    saved = runs[0] / "manifest.json"
    texts = [
        "".join(cli("compare", run, "--baseline", saved, "--across", "program")[1:])
        for run in runs[1:]
    ]
    assert "model" not in texts[0] and f"; {TWO}" in texts[1]
    content = json.loads(saved.read_text())
    content["export"]["graph"] = ""
    saved.write_text(json.dumps(content))
    assert UNKNOWN in "".join(cli("compare", runs[1], "--baseline", saved, "--across",
                                  "program")[1:])  # fmt: skip


def test_a_run_whose_program_was_replaced_is_not_measured_again_as_what_it_was(tmp_path):
    before = wb.open_run(put(tmp_path, "run", replace(net("mlp"), pte=f"{tmp_path}/net.pte"), 1.0))
    (tmp_path / "net.pte").write_bytes(b"another program")
    with pytest.raises(wb.WorkbenchError, match=r"no longer the program of the run.* --out"):
        wb.measure([before, before])
