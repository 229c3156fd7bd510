"""Recordings of other tools: the kit's folders and bare ETDumps, in the shapes that occur."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from etdump_builder import Block, Profile, build_etdump
from hypothesis import example, given, settings
from hypothesis import strategies as st
from run_folder import write_run

import workbench as wb

QEMU, LINUX = wb.sample_run("toy_cnn"), wb.sample_run()
TESTS_DATA = Path(__file__).parent / "data"


def toy(side):
    return QEMU / f"sme2_{side}" / f"toy_cnn_xnnpack_fp32_sme2_{side}_t1.etdump"


def mobilenet(side, restart=""):
    name = f"mobilenet_v3_small_xnnpack_fp32_avx512_{side}_t1{restart}.etdump"
    return LINUX / f"avx512_{side}" / name


def put(folder, files):
    for name, source in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, folder / name)
    return folder


def pairs_of(run):
    return [(ab.baseline.name, ab.candidate.name) for ab in run.comparisons]


#: A folder by the shape of its names, and its experiments, pairs, threads and restarts.
SHAPES = {
    "subfolders": (["on/net.etdump", "off/net.etdump"], "off>on", 1, 1),
    "flat": (["net_sme_on_t4.etdump", "net_sme_off_t4.etdump"], "net_sme_off>net_sme_on", 4, 1),
    "restarts": (["a_on_p1.etdump", "a_on_p2.etdump", "a_off_p1.etdump", "a_off_p2.etdump"],
                 "a_off>a_on", 1, 2),
    "numbered": (["on/trace_1.etdump", "on/trace_2.etdump", "off/1.etdump", "off/2.etdump"],
                 "off>on", 1, 2),
    "ours": (["sme2_on/n_xnnpack_fp32_sme2_on_t2.etdump",
              "sme2_off/n_xnnpack_fp32_sme2_off_t2.etdump"], "sme2_off>sme2_on", 2, 1),
    "kit": (["toy_cnn_xnnpack_fp16_mac_sme2_on_t1.etdump",
             "toy_cnn_xnnpack_fp16_mac_sme2_off_t1.etdump"], "mac_sme2_off>mac_sme2_on", 1, 1),
    "deep": (["runs/mac/a/x.etdump", "runs/mac/no_a/x.etdump"], "no_a>a", 1, 1),
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_folders_and_names_give_experiments_threads_and_restarts(tmp_path, shape):
    names, pair, threads, restarts = SHAPES[shape]
    sides = {n: toy("off" if "off" in n or "no_" in n else "on") for n in names}
    run = wb.open_run(put(tmp_path, sides))
    (ab,) = run.comparisons
    assert f"{ab.baseline.name}>{ab.candidate.name}" == pair
    assert ab.candidate.threads == threads
    assert {len(m.sessions) for m in run.measurements} == {restarts}
    assert not list(tmp_path.rglob("*.json"))


def test_names_that_say_nothing_leave_the_direction_to_the_kernels(tmp_path):
    run = wb.open_run(put(tmp_path, {"a.etdump": toy("on"), "b.etdump": toy("off")}))
    assert pairs_of(run) == [("b", "a")]
    assert "b: the traces of a name SME kernels" in run.record.plan.direction
    chosen = wb.open_run(tmp_path, baseline="a")
    assert pairs_of(chosen) == [("a", "b")]
    with pytest.raises(Exception, match="unknown experiment 'c' -> valid: a, b"):
        wb.open_run(tmp_path, baseline="c")


def test_one_process_each_is_no_claim(tmp_path):
    """Two medians differ here, and nothing shows that other processes would."""
    sides = {f"{side}.etdump": mobilenet(side) for side in ("on", "off")}
    (ab,) = wb.open_run(put(tmp_path, sides)).comparisons
    assert ab.verdict.outcome == "inconclusive"
    assert re.search(r"\(observed 1\.\d\dx, no interval: ", ab.text)
    assert "measured apart, one process each)" in ab.text
    outcomes = {*ab.speedups["outcome"], *ab.operators["outcome"]}
    assert outcomes <= {"inconclusive", "below the clock"}
    assert "low_ms" not in ab.shift
    assert ab.baseline.statistics[["min", "max"]].notna().all(axis=None)


def test_restarts_measured_apart_have_an_interval_of_their_own(tmp_path):
    files = {f"{s}{p}.etdump": mobilenet(s, p) for s in ("on", "off") for p in ("", "_p2", "_p3")}
    (ab,) = wb.open_run(put(tmp_path, files)).comparisons
    row = ab.latency.iloc[0]
    apart = wb.compare(wb.open_run(tmp_path)["off"], wb.open_run(tmp_path)["on"]).latency.iloc[0]
    assert row["low"] < row["speedup"] < row["high"]
    assert (row["low"], row["high"]) == (apart["low"], apart["high"])
    assert ", measured apart" in ab.text
    assert ("only a change above" in ab.text) == (ab.verdict.outcome == "inconclusive")


@pytest.mark.parametrize("few", [False, True])
def test_the_first_inference_of_a_process_is_left_out_even_of_two(tmp_path, few):
    made = write_run(tmp_path / "made", {"on": 3.0}, traced=2) if few else None
    trace = next(made.glob("*.etdump")) if few else mobilenet("on")
    run = wb.open_run(put(tmp_path / "other", {"on.etdump": trace}))
    events = wb.read_etdump(trace)
    executes = events.loc[(events["kind"] == "method") & (events["run"] >= 0), "duration_ns"]
    assert run.latencies["wall_ns"].tolist() == executes.tolist()[1:]
    assert run.statistics["n"].item() == len(executes) - 1
    assert 0 not in run["on"].ledger["run"].values


def test_traces_named_after_two_programs_with_the_same_calls_are_of_two(tmp_path, cli):
    for name in ("net_small", "net_large"):
        for ending in (".etdump", ".pte"):
            shutil.copy(TESTS_DATA / f"etdump/two_methods{ending}", tmp_path / f"{name}{ending}")
    run = wb.open_run(tmp_path)
    names = {"net_small", "net_large"}
    assert {m.program.stem for m in run.measurements} == names and not run.comparisons
    for name in names:
        assert cli("findings", tmp_path, "--experiment", name)[1].startswith(f"{name}: ")
    (tmp_path / "net_small.pte").unlink()
    assert len(wb.open_run(tmp_path).comparisons) == 1


def test_a_single_etdump_is_a_run(tmp_path):
    trace = put(tmp_path, {"net_on_t2.etdump": mobilenet("on"), "x.etdump": toy("on")})
    run = wb.open_run(trace / "net_on_t2.etdump")
    assert [(m.name, m.threads) for m in run.measurements] == [("net_on", 2)]
    assert run.output == tmp_path / "net_on_t2.workbench"
    other = wb.open_run(trace / "x.etdump")
    with pytest.raises(Exception, match="the two differ in program"):
        wb.compare(run["net_on", 2], other["x"], across="threads")


@pytest.mark.parametrize(
    ("metadata", "text"),
    [
        (b'{"preferredComputeUnit": "GPU", "estimatedCost": 0.5}',  # Core ML
         "preferredComputeUnit=GPU, estimatedCost=0.5"),
        (b"xnn_f32_gemm_ukernel\x0012", "xnn_f32_gemm_ukernel 12"),
        (b"\xff\x01\x00\x00", "ff 01 00 00"),
        (b"[" * 5000, "[" * 4096),
        (b"<b>\x1b[31m", "<b>?[31m"),
        (b"", None),
    ],
)  # fmt: skip
def test_what_a_delegate_logged_with_an_operator_is_a_column(tmp_path, metadata, text):
    inner = Profile(None, 0, 0, delegate_str="conv", metadata=metadata, start=1, end=8)
    call = Profile("DELEGATE_CALL", 0, 0, start=0, end=9)
    whole = Profile("Method::execute", -1, start=0, end=9)
    blocks = [Block("Execute", [inner, call, whole])]
    (tmp_path / "x.etdump").write_bytes(build_etdump(blocks))
    run = wb.open_run(tmp_path / "x.etdump")
    operators = run.operators.set_index("operator")
    assert operators.get("metadata", {}).get("conv") == text
    assert ("metadata" in str(wb.show(run, "operators"))) == (text is not None)


def test_traces_of_different_programs_are_not_compared(tmp_path):
    files = {
        f"{n}_{s}.etdump": f(s) for n, f in (("a", toy), ("b", mobilenet)) for s in ("on", "off")
    }
    run = wb.open_run(put(tmp_path, files))
    assert pairs_of(run) == [("a_off", "a_on"), ("b_off", "b_on")]
    assert len(run.record.plan.all_programs) == 2


#: As the kit's orchestrator writes it, but for what is not read.
def summarize_kit(folder, stem, experiments):
    runs = [
        {
            "experiment": name, "threads": 1, "mode": mode, "status": "ok", "metrics": {},
            "paths": {key: f"/home/someone/runs/mac/{stem}_{name}_t1{ending}"},
        }
        for name, mode, key, ending in experiments
    ]  # fmt: skip
    content = {"model": f"out_net/artifacts/{stem}.pte", "generated_at": "2026-01-02T03:04:05Z"}
    (folder / f"{stem}_pipeline_summary.json").write_text(json.dumps({**content, "runs": runs}))


def test_a_flat_folder_of_the_kit(tmp_path):
    folder, stem = tmp_path / "out_net" / "runs" / "mac", "my_net"
    files = {f"{stem}_mac_sme2_{side}_t1.etdump": toy(side) for side in ("on", "off")}
    put(folder, files)
    for side in ("on", "off"):  # of a runner that logs its kernels; not read
        (folder / f"{stem}_trace_sme2_{side}_t1_xnntrace.log").write_text(
            "Using gemm microkernel\n"
        )
    (folder / f"{stem}_mac_sme2_on_t1_latency.log").write_text("no kernel\n")
    timing = [(f"mac_sme2_{s}", "timing", "etdump", ".etdump") for s in ("on", "off")]
    traced = [
        (f"trace_sme2_{s}", "xnntrace", "xnntrace_log", "_xnntrace.log") for s in ("on", "off")
    ]
    summarize_kit(folder, stem, timing + traced)
    run = wb.open_run(folder)
    assert run.model == stem
    assert run.recording.source == "Arm's profiling kit"
    assert pairs_of(run) == [("mac_sme2_off", "mac_sme2_on")]
    about = run.description.set_index("what")["value"]
    assert about["measured"] == "2026-01-02T03:04:05Z"
    assert not {"machine", "runner", "inputs"} & set(about.index)
    assert "ISA level" not in str(about) and "batches" not in str(about)


def write_kit_manifest(folder, experiment="mac_sme2_on", **metrics):
    entry = {"experiment": experiment, "metrics": {"threads": 1, "latency_ms": [12.3], **metrics}}
    content = {"model": "models/net_fp16.pte", "executorch": {"sha": "abc"}, "results": [entry]}
    for name in ("manifest.json", "metrics.json"):
        (folder / name).write_text(json.dumps(content))


@pytest.fixture
def kit(tmp_path):
    folder = tmp_path / "runs" / "mac"
    put(folder, {"mac_sme2_on/net_fp16_mac_sme2_on_t3.etdump": toy("on")})
    write_kit_manifest(folder, etdump="mac_sme2_on/net_fp16_mac_sme2_on_t3.etdump")
    return folder


def test_a_manifest_of_the_kit_names_model_version_and_experiment(kit):
    run = wb.open_run(kit)
    assert (run.model, run.record.platform) == ("net_fp16", "mac")
    assert run.record.versions == {"executorch": "abc"}
    assert run["mac_sme2_on"].latency_ms != 12.3  # of the traced process; measured in the trace
    assert run.comparisons == ()


@pytest.mark.cases
def test_what_is_written_leaves_the_owners_files_alone(kit, cli):
    before = {path: path.read_bytes() for path in kit.rglob("*") if path.is_file()}
    for command in ("analyze", "report", "findings"):
        code, _, err = cli(command, kit)
        assert code == 0, err
    assert {path: path.read_bytes() for path in before} == before
    written = {
        p.relative_to(kit).parts[0] for p in kit.rglob("*") if p.is_file() and p not in before
    }
    assert written == {"results.workbench"}
    code = "import workbench; workbench.open_run"  # a folder of this name would hide the package
    assert subprocess.run([sys.executable, "-c", code], cwd=kit).returncode == 0
    report = (kit / "results.workbench" / "report.md").read_text()
    assert "No comparison" in report
    assert "Arm's profiling kit" in report
    assert wb.open_run(kit).record == wb.open_run(kit).record


def test_everything_about_a_recording_works_or_says_what_is_missing(tmp_path):
    folder = tmp_path / "alone" / "traces"  # other tests leave programs beside tmp_path
    run = wb.open_run(put(folder, {"on.etdump": toy("on"), "off.etdump": toy("off")}))
    on, (ab,) = run["on"], run.comparisons
    for owner in (run, on, ab):
        for name in dir(owner):
            if not name.startswith("_"):
                getattr(owner, name)
    assert (run.layers, on.machine_code, on.roofline) == (None,) * 3
    for plot in (wb.plot_latencies, wb.plot_categories, wb.plot_iterations):
        assert plot(run).alt_text
    for view in ("layers", "roofline", "operators", "findings"):
        assert str(wb.show(on, view))
    for view in ("code", "kernels", "speedups"):
        assert str(wb.show(ab, view))
    for view in ("undelegated", "quality", "verdicts"):
        assert str(wb.show(run, view))
    assert wb.plot_shift(ab).alt_text and wb.plot_speedups(ab).alt_text
    missing = run.checks.set_index("check").at["not recorded", "evidence"]
    assert "layers (put the .pte" in missing
    assert "fail" not in set(run.checks["status"])
    assert "emulated" not in set(run.quality["criterion"])


def test_a_program_nearby_gives_layers_if_the_traces_are_of_it(tmp_path):
    sidecar = {"layers.json": LINUX / "layers.json"}
    run = wb.open_run(put(tmp_path / "a", {"on.etdump": mobilenet("on"), **sidecar}))
    assert run.layers is not None
    assert run.record.plan.sha256 == wb.open_run(LINUX).record.plan.sha256
    assert wb.open_run(put(tmp_path / "b", {"on.etdump": toy("on"), **sidecar})).layers is None


@pytest.mark.parametrize("name", ["bad.etdump", "sub/bad.etdump"])
@pytest.mark.parametrize("content", [b"", b"dummy-etdump", b"\0" * 64, "cut"])
def test_a_broken_trace_is_left_out_and_named(tmp_path, name, content):
    put(tmp_path, {"on.etdump": toy("on"), name: toy("off")})
    (tmp_path / name).write_bytes(toy("off").read_bytes()[:900] if content == "cut" else content)
    run = wb.open_run(tmp_path)
    assert len(run.measurements) == 1
    assert run.checks.set_index("check").at[name, "status"] == "fail"
    assert (run.checks["status"] == "fail").sum() == 1
    (tmp_path / "on.etdump").unlink()
    with pytest.raises(Exception, match=r"ETDump|cut short|empty"):
        wb.open_run(tmp_path)


def test_what_is_no_recording_is_one_line(tmp_path):
    with pytest.raises(Exception, match="no ETDump: not a run folder"):
        wb.open_run(tmp_path)
    with pytest.raises(Exception, match="no such file or folder"):
        wb.open_run(tmp_path / "none")
    put(tmp_path, {"runs/mac/on.etdump": toy("on"), "runs/android/on.etdump": toy("on")})
    with pytest.raises(Exception, match=r"runs: .*runs/android, .*runs/mac"):
        wb.open_run(tmp_path)
    put(tmp_path / "runs" / "mac", {"on.etdump": toy("on")})
    write_kit_manifest(tmp_path / "runs" / "mac")
    with pytest.raises(Exception, match="recorded by another tool"):
        wb.measure_roof(tmp_path / "runs" / "mac")


JUNK = st.recursive(
    st.none() | st.integers() | st.text(max_size=6) | st.sampled_from(["on", "on.etdump"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["results", "runs", "model", "metrics", "paths", "experiment", "threads",
                         "etdump", "executorch", "sha", "plan"]), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(content=JUNK)
def test_any_json_beside_traces_is_read_or_ignored(tmp_path_factory, content):
    folder = tmp_path_factory.getbasetemp() / "junk"
    if not folder.exists():
        put(folder, {"on.etdump": toy("on")})
    (folder / "x_pipeline_summary.json").write_text(json.dumps(content))
    (measurement,) = wb.open_run(folder).measurements
    assert measurement.name
    assert measurement.threads > 0


PATHS = st.lists(
    st.lists(
        st.text("ab_-.09é \n", min_size=1, max_size=6)
        | st.sampled_from(["on", "off", "t4", "p2", "x_t1", "x_t1_p2", "net_xnnpack_fp32_on_t1"]),
        min_size=1, max_size=3,
    ).map(lambda parts: Path(*[p.strip(".") or "x" for p in parts[:-1]], parts[-1] + ".etdump")),
    min_size=1, max_size=8, unique=True,
)  # fmt: skip


@pytest.mark.whole
@given(PATHS)
@example([Path("a/b.etdump"), Path("a/b/x_t1.etdump")])
@example([Path("0/0.etdump"), Path("0/9.etdump"), Path("0/0/x_t1.etdump")])
@settings(max_examples=20)
def test_every_trace_has_a_name_of_its_own(tmp_path_factory, paths):
    folder = tmp_path_factory.mktemp("names")
    events = [Profile("Method::execute", -1, -1, start=1, end=9)]
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(build_etdump([Block("Execute", events)]))
    sessions = wb.open_run(folder).record.sessions
    assert {session.etdump for session in sessions} == {str(path) for path in paths}
    restarts = {}
    for session in sessions:
        restarts.setdefault((session.experiment, session.threads), []).append(session.process)
    assert all(sorted(found) == list(range(len(found))) for found in restarts.values())


def test_a_recording_among_the_runs_can_be_picked_and_a_broken_one_is_skipped(kit):
    broken = kit.with_name("linux")
    broken.mkdir()
    (broken / "manifest.json").write_text("{")
    assert len(wb.pick_measurements(kit.parents[1]).selected) == 2
    assert wb.open_run(kit).measurements[0].name == "mac_sme2_on"


def test_a_program_that_explains_most_operators_is_not_the_one_without_its_name(tmp_path):
    """Variants of a model in other dtypes have the same calls, and nearly the same operators."""
    put(tmp_path, {"on.etdump": mobilenet("on")})
    text = (LINUX / "layers.json").read_text()
    content = json.loads(text)
    nodes = [n for m in content["methods"] for i in m["instructions"] for n in i["xnodes"]]
    for node in nodes[::6]:
        node["type"] = "Tanh"
    (tmp_path / "layers.json").write_text(json.dumps(content))
    run = wb.open_run(tmp_path)
    assert run.layers is None
    (tmp_path / "layers.json").write_text(text)
    assert wb.open_run(tmp_path).layers is not None


@pytest.mark.parametrize("every", [51, 5, 2])
def test_a_disturbed_trace_has_one_latency(tmp_path, every):
    """The parts of its inferences are those of the latency, however many were disturbed."""
    ops, blocks, now = {"conv": 60, "linear": 30, "add": 10}, [], 0
    for number in range(51):
        events, begin = [], now
        for place, (name, us) in enumerate(ops.items()):
            us = us * (1000 + number % 7) // 1000 + (
                900 + 9 * number if number % every == 1 and name == "linear" else 0
            )
            events.append(Profile(f"{name}.out", 0, place, start=now, end=now + us * 1000))
            now += us * 1000
        events.append(Profile("Method::execute", -1, start=begin, end=now))
        blocks.append(Block("Execute", events))
    (tmp_path / "net.etdump").write_bytes(build_etdump(blocks))
    m = wb.open_run(tmp_path / "net.etdump").subject
    whole, rows = m.latency_ms, m.operators.set_index("key")["mean_ms"]
    assert rows.sum() == pytest.approx(whole)
    assert every == 2 or whole == pytest.approx(0.1, rel=0.01)
    assert m.categories["mean_ms"].sum() == pytest.approx(rows.sum())
    assert m.times.undisturbed.mean()[rows.index].to_list() == pytest.approx(rows.to_list())
    checks = m.run.checks.set_index("check")["evidence"]
    assert "the middle half is used, 24 of 50 runs" in checks["traces are undisturbed"]
