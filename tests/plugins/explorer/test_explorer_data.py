"""The explorer's data are those of the frames, and are safe in a page."""

import base64
import hashlib
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from changed_runs import with_record
from explored import by_key, document_of, read_data
from needed import needs
from recorded import recorded

import workbench as wb

EXPLORER = Path(wb.__file__).parent / "plugins" / "explorer"
MODELS = [
    *("mobilenet_v3_small", "toy_cnn"),
    *(pytest.param(model, marks=pytest.mark.cases) for model in ("squeezesam", "unet_small")),
]


@pytest.mark.parametrize("model", MODELS)
def test_every_operator_has_the_time_of_the_frames(model):
    run, document = recorded(model), document_of(model)
    for shown in document["measurements"]:
        m = run[shown["experiment"], shown["threads"]]
        mean = by_key(document, shown, shown["mean_ms"])
        wanted = m.operators.set_index("key")["mean_ms"].to_dict()
        assert mean == pytest.approx(wanted, abs=1e-6)
        assert [row["mean_ms"] for row in shown["categories"]] == m.categories["mean_ms"].tolist()
        restarts = np.array(shown["restarts_ms"], float)
        if len(m.sessions) > 1:
            e2e = (
                m.ledger.groupby(["process", "run"])["duration_ns"].sum().groupby("process").mean()
            )
            assert np.nansum(restarts, axis=1) * 1e6 == pytest.approx(e2e.to_numpy(), rel=1e-4)


@pytest.mark.parametrize("model", MODELS)
def test_every_comparison_has_the_figures_of_the_frames(model):
    run, document = recorded(model), document_of(model)
    assert len(document["comparisons"]) == len(run.comparisons)
    for shown, ab in zip(document["comparisons"], run.comparisons, strict=True):
        frame = ab.operators.set_index("key")
        candidate = document["measurements"][shown["candidate"]]
        assert candidate["label"] == ab.candidate.label
        for column in ("baseline_ms", "candidate_ms", "speedup", "low", "high"):
            found = by_key(document, candidate, shown["operators"][column])
            finite = frame[column][np.isfinite(frame[column])]
            assert found == pytest.approx(finite.to_dict(), abs=1e-6)
        outcomes = [shown["outcomes"]["values"][code] for code in shown["outcomes"]["codes"]]
        assert outcomes == frame["outcome"].loc[list(document["programs"][0]["keys"])].tolist()
        assert shown["verdict"] == ab.text
        assert shown["latency"]["speedup"] == ab.latency["speedup"].iloc[0]


@pytest.mark.parametrize("model", MODELS)
def test_labels_are_unique(model):
    for program in document_of(model)["programs"]:
        assert len(set(program["labels"])) == len(program["keys"])


@pytest.mark.parametrize("model", MODELS)
def test_inferences_have_the_times_of_the_trace(model):
    run, document = recorded(model), document_of(model)
    for shown in document["measurements"]:
        events = run[shown["experiment"], shown["threads"]].events
        assert 0 < len(shown["trace"]["inferences"]) <= 20
        for inference in shown["trace"]["inferences"]:
            events_of = events[events["run"] == inference["run"]]
            shape = shown["trace"]["shapes"][inference["shape"]]
            begin = events_of.loc[events_of["kind"] == "method", "start_ns"].iloc[0]
            starts = 100 * np.cumsum(inference["gaps"])
            assert len(starts) == len(shape[1]) == len(events_of)
            wanted = np.sort(events_of["start_ns"] - begin)
            assert np.abs(np.sort(starts) - wanted).max() <= 50
            durations = 100 * np.sort(inference["durations"])
            assert np.abs(durations - np.sort(events_of["duration_ns"])).max() <= 50


def test_a_lone_trace_has_its_inferences_without_the_first():
    trace = wb.sample_run("vit_tiny") / "avx512_off" / "vit_tiny_xnnpack_fp32_avx512_off_t1.etdump"
    run = wb.open_run(trace)
    (shown,) = read_data(run)["measurements"]
    numbers = {inference["run"] for inference in shown["trace"]["inferences"]}
    assert numbers and numbers <= set(run.subject.events["run"])


def test_edges_follow_the_tensors_through_fused_operators_and_delegates():
    program = document_of("mobilenet_v3_small")["programs"][0]
    read = {}
    for source, row in program["edges"]:
        read.setdefault(program["labels"][row], set()).add(program["labels"][source])
    assert read["classifier.3 · Fully Connected GEMM #42"] == {"classifier.1 · HardSwish #19"}
    assert read["features.0.0 · Convolution IGEMM #1"] == {"features.0.0 · Transpose #1"}
    # A squeeze-and-excitation block multiplies its input by what it computed from it.
    (product,) = (row for row in read if row.startswith("features.1.block.1 · Multiply"))
    assert any(source.startswith("features.1.block.0.0 ·") for source in read[product])
    assert len(read[product]) == 2


@pytest.mark.whole
def test_edges_connect_delegates_and_kernels():
    program = document_of("squeezesam")["programs"][0]
    crossing = {
        (program["instructions"][source], program["instructions"][row])
        for source, row in program["edges"]
    }
    assert any(source != row for source, row in crossing)
    assert all(source <= row for source, row in crossing)


def test_findings_name_their_operators_and_gain():
    run, document = recorded("mobilenet_v3_small"), document_of("mobilenet_v3_small")
    shown = document["measurements"][document["comparisons"][0]["candidate"]]["findings"]
    keys = document["programs"][0]["keys"]
    assert [finding["title"] for finding in shown] == run.findings["cause"].to_list()
    for finding, wanted in zip(shown, run.opportunities, strict=True):
        assert {keys[number] for number in finding["operators"]} == set(wanted.operators)


def test_machine_code_is_that_of_the_samples():
    run, document = recorded("toy_cnn"), document_of("toy_cnn")
    shown = document["measurements"][document["comparisons"][0]["candidate"]]
    keys = document["programs"][0]["keys"]
    found = {key: shown["functions"]["code"]["codes"][row] for row, key in enumerate(keys)}
    for row in run.compare().kernels.itertuples():
        assert shown["functions"]["code"]["values"][found[row.key]] == row.candidate_code


@pytest.mark.whole
def test_a_page_stays_small():
    for model in ("mobilenet_v3_small", "squeezesam", "toy_cnn", "unet_small"):
        assert len(wb.explore(recorded(model)).text) < 1_000_000


@pytest.mark.whole
def test_hostile_names_stay_data():
    evil = "</script><script>alert(1)</script>\u2028'\"<!--"
    run = recorded("mobilenet_v3_small")
    plan = replace(run.record.plan, model=evil)
    page = wb.explore(with_record(run, plan=plan)).text
    assert page.count("<script") == 2
    assert "alert(1)</script>" not in page
    (data,) = re.findall(r'<script type="application/json" id="explorer-data">(.*?)</script>', page)
    assert json.loads(data)["head"]["model"] == evil.replace("\u2028", "?")
    assert "\u2028" not in data


def test_the_page_allows_its_own_script_and_no_request():
    page = wb.explore(recorded("toy_cnn")).text
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)[1]
    assert policy.startswith("default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'")
    script = page.split('<script type="module">')[1].split("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy


def test_the_bundle_is_made_of_the_sources():
    web = EXPLORER / "web"
    sources = [web / name for name in ("build.mjs", "package-lock.json", "package.json")]
    sources += sorted((web / "src").iterdir())
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    head = (EXPLORER / "explorer.js").read_text().split("\n", 1)[0]
    assert head.endswith(digest), "run `python3 dev.py web`"


def test_the_bundle_has_the_licences_of_what_it_contains_and_no_address_of_a_registry():
    bundle = (EXPLORER / "explorer.js").read_text()
    for package in ("@dagrejs/dagre", "d3-scale"):
        assert re.search(rf"^{package} [\d.]+ \((MIT|ISC)\)$", bundle, re.MULTILINE)
    assert "</script" not in bundle
    lock = json.loads((EXPLORER / "web" / "package-lock.json").read_text())
    assert not [name for name, entry in lock["packages"].items() if "resolved" in entry]


def test_a_program_has_the_source_of_its_operators():
    program = read_data(recorded())["programs"][0]
    sources = program["texts"]["source"]["values"]
    assert {place.rpartition(":")[0] for place in sources} == {*program["sources"]}
    for place in sources:
        file, _, line = place.rpartition(":")
        assert "self." in program["sources"][file]["1"].split("\n")[int(line) - 1]


def test_one_comparison_is_explored_alone():
    run = recorded("squeezesam")
    document = read_data(run.compare("avx", "native"))
    assert [m["experiment"] for m in document["measurements"]] == ["avx", "native"]
    assert len(document["comparisons"]) == 1


@pytest.mark.whole
def test_operators_of_different_programs_are_joined_as_the_comparison_pairs_them():
    sides = [recorded(name)["avx512_on"] for name in ("AsTrained", "Ready")]
    ab = wb.compare(*sides, across=["program"])
    document = read_data(ab)
    (shown,) = document["comparisons"]
    before, after = (document["measurements"][n] for n in (shown["baseline"], shown["candidate"]))
    theirs, ours = (document["programs"][m["program"]]["keys"] for m in (before, after))
    found = {ours[row]: theirs[twin] for row, twin in enumerate(shown["partners"]) if twin >= 0}
    frame = ab.operators.dropna(subset=["baseline_ms", "candidate_ms"])
    assert found == dict(zip(frame["candidate_key"], frame["key"], strict=True))
    assert len(found) > 40
    speedups = frame.set_index("candidate_key")["speedup"].dropna()
    columns = by_key(document, after, shown["operators"]["speedup"])
    assert columns == pytest.approx(speedups.to_dict(), abs=1e-6)


@pytest.mark.whole
def test_runs_measured_apart_are_compared(tmp_path):
    other = wb.open_run(shutil.copytree(wb.sample_run(), tmp_path / "run"))
    ab = wb.compare(recorded("mobilenet_v3_small")["avx512_off"], other["avx512_on"])
    document = read_data(ab)
    assert any("measured apart" in caveat for caveat in document["comparisons"][0]["caveats"])
    assert len({m["label"] for m in document["measurements"]}) == 2


@pytest.mark.whole
def test_noisy_programs_have_a_warning():
    known = recorded("squeezesam").subject.export.sqnr_db
    assert known < 20
    noisy = [
        text for text in document_of("squeezesam")["comparisons"][0]["caveats"] if "SQNR" in text
    ]
    assert len(noisy) == 1 and f"{known:.1f} dB" in noisy[0]
    assert not any(
        "SQNR" in t for t in document_of("mobilenet_v3_small")["comparisons"][0]["caveats"]
    )


def test_views_have_names():
    with pytest.raises(wb.WorkbenchError, match="unknown view 'icicle' -> valid: cat"):
        wb.explore(recorded("toy_cnn"), "icicle")
    assert 'data-only="levels"' in wb.explore(recorded("toy_cnn"), "levels").text


def test_traces_alone_are_explored(tmp_path):
    for name in ("avx512_off", "avx512_on"):
        shutil.copy(
            recorded("unet_small")[name].run.locate(
                recorded("unet_small")[name].sessions[0].etdump
            ),
            tmp_path,
        )
    document = read_data(wb.open_run(tmp_path))
    assert not any(m["untraced"] for m in document["measurements"])
    assert document["programs"][0]["edges"] == [] and document["programs"][0]["modules"] == []
    assert {m["isa"] for m in document["measurements"]} == {""}


@needs("memory")
def test_activations_reach_their_peak_and_name_the_operators_that_write_them():
    program, subject = (
        document_of("mobilenet_v3_small")["programs"][0],
        recorded("mobilenet_v3_small").subject,
    )
    found, tensors = program["activations"], subject.tensors
    assert (
        sum(map(max, found["live"].values())) == tensors.loc[tensors["at_peak"], "size_bytes"].sum()
    )
    assert len(found["steps"]) == len(subject.flow.steps)
    for tensor in found["tensors"]:
        row = found["steps"][tensor["first"]]
        if tensor["module"] and row >= 0:
            layers = program["texts"]["module"], program["texts"]["also"]
            named = [
                text["values"][text["codes"][row]] for text in layers if text["codes"][row] >= 0
            ]
            assert tensor["module"] in ", ".join(named).split(", ")
    assert found["tensors"][0]["at_peak"] and len(found["tensors"]) == 12


def test_a_notebook_gets_a_widget_and_a_page_otherwise(monkeypatch):
    monkeypatch.setenv("WORKBENCH_WIDGETS", "1")
    widget = wb.explore(recorded("toy_cnn"))
    assert json.loads(widget.data)["head"]["model"] == "toy_cnn"
    monkeypatch.setenv("WORKBENCH_WIDGETS", "0")
    shown = wb.explore(recorded("toy_cnn"))._repr_html_()
    assert shown.startswith("<iframe") and "<script" not in shown


@pytest.mark.whole
def test_inputs_that_an_older_workbench_listed_by_id_are_the_same_arguments(tmp_path):
    folder = shutil.copytree(wb.sample_run("squeezesam"), tmp_path / "run")
    content = json.loads((folder / "layers.json").read_text())
    for call in content["methods"][0]["instructions"]:  # its mask in int8 is the first argument
        call["xvalues"].sort(key=lambda value: value["dtype"] != "qint8")
    (folder / "layers.json").write_text(json.dumps(content))
    edges = read_data(wb.open_run(folder))["programs"][0]["edges"]
    assert edges == document_of("squeezesam")["programs"][0]["edges"]
