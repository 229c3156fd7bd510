"""Node data for Model Explorer: every time once, at nodes that the adapters' graphs have."""

import json
import re
import shutil
from pathlib import Path

import pytest
from hostile_run import make_hostile
from recorded import recorded

import workbench as wb

MODELS = ["squeezesam", "mobilenet_v3_small", "vit_tiny", "mobilenet_v3_small_int8"]
#: Of these, every kind of graph: one delegate, many, unrolled LSTM layers, quantised ones.
NETWORKS = {"Lstm": "int8dyn", "Mixed": "fp32", "toy_cnn": "int8"}
SOURCE = """
import torch


class Lstm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = torch.nn.LSTM(16, 16, batch_first=True), torch.nn.Linear(16, 4)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])

    def example_inputs(self):
        return (torch.randn(1, 5, 16),)


class Mixed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(3, 8, 3), torch.nn.LayerNorm([8, 14, 14])

    def forward(self, x):
        return torch.roll(self.norm(self.conv(x)), 1, 2).mean((2, 3))

    def example_inputs(self):
        return (torch.randn(1, 3, 16, 16),)
"""


def read(files, ending):
    (file,) = (path for path in files if path.name.endswith(ending))
    return json.loads(file.read_text())


def values(graph):
    return {node: shown["value"] for node, shown in graph["results"].items()}


@pytest.mark.parametrize(
    "model", [MODELS[0], *(pytest.param(model, marks=pytest.mark.whole) for model in MODELS[1:])]
)
def test_every_time_stands_at_one_node(model, tmp_path):
    ab = recorded(model).comparisons[0]
    files = wb.export_trace(ab.run.path, "model-explorer", out=tmp_path)
    assert len(files) == 6
    for m in (ab.baseline, ab.candidate):
        graphs = read(files, f".pte.{m.name}_t{m.threads}.json")
        outer = values(graphs.pop("forward"))
        framework = m.ledger["instruction"].lt(0).groupby(m.ledger["key"]).all()
        inside = m.operators[~m.operators["key"].map(framework)]
        assert sum(outer.values()) == pytest.approx(inside["mean_ms"].sum())
        delegated = m.operators[m.operators["xnodes"].notna()]
        inner = sum(sum(values(graph).values()) for graph in graphs.values())
        assert inner == pytest.approx(delegated["mean_ms"].sum())
        nodes = {f"{graph}/{node}" for graph, found in graphs.items() for node in found["results"]}
        assert len(nodes) <= len(delegated)
        (etrecord,) = read(files, f".etrecord.{m.name}_t{m.threads}.json").values()
        origins = {f"{origin.node}_" for origin in m.sidecar.methods[0].origins}
        assert set(etrecord["results"]) <= origins
        placed = m.operators[m.operators["nodes"].notna() & (m.operators["role"] != "overhead")]
        assert sum(values(etrecord).values()) == pytest.approx(placed["mean_ms"].sum())


@pytest.mark.whole
def test_speedups_are_those_of_the_comparison(tmp_path):
    run = recorded()
    ab = run.compare()
    files = wb.export_trace(run.path, "model-explorer", out=tmp_path)
    shown = read(files, "etrecord.speedup.json")["forward"]["results"]
    rows = ab.operators.merge(run.subject.operators[["key", "nodes"]], on="key").dropna()
    single = rows[~rows["nodes"].duplicated(keep=False) & ~rows["nodes"].str.contains(",")]
    assert len(single) > 30
    for row in single.itertuples():
        node = shown[f"{row.nodes}_"]
        assert node["value"] == pytest.approx(row.speedup)
        wanted = {"faster": "#7ea2ff", "slower": "#ff9a57"}.get(row.outcome, "#e4e7eb")
        assert node["bgColor"] == wanted
    # The whole delegate is judged as one.
    instruction = run.subject.operators["key"].iloc[0].split("/")[0]
    delegate = read(files, ".pte.speedup.json")["forward"]["results"][f"forward_0_{instruction}"]
    kinds = ab.kinds.set_index("name")
    both = kinds.filter(regex="deleg", axis=0)[["baseline_ms", "candidate_ms"]].sum()
    assert delegate["value"] == pytest.approx(both["baseline_ms"] / both["candidate_ms"], rel=0.02)


def test_two_traces_of_the_same_name_have_files_of_their_own(tmp_path):
    other = shutil.copytree(wb.sample_run(), tmp_path / "other")
    sides = [wb.open_run(path)["avx512_on"] for path in (wb.sample_run(), other)]
    out = tmp_path / "out"
    files = wb.export_trace(other, "model-explorer", out=out, baseline=wb.sample_run())
    assert len(files) == len(set(files)) == 6
    names = [path.name for path in files if ".pte." in path.name]
    ending = "avx512_on_t1"
    stem = f"{sides[0].program.stem}.pte"
    wanted = [f"{ending}_baseline", f"{ending}_candidate", "speedup"]
    assert names == [f"{stem}.{name}.json" for name in wanted]


def test_emulated_times_and_unknown_programs_are_refused(tmp_path):
    with pytest.raises(wb.WorkbenchError, match="emulated"):
        wb.export_trace(wb.sample_run("toy_cnn"), "model-explorer", out=tmp_path)
    run = recorded("unet_small")
    trace = run.locate(run.subject.sessions[0].etdump)
    with pytest.raises(wb.WorkbenchError, match=r"program is unknown.*put the \.pte beside it"):
        wb.export_trace(shutil.copy(trace, tmp_path), "model-explorer")
    assert not list(tmp_path.glob("**/*.json"))


@pytest.mark.cases
@pytest.mark.parametrize("model", NETWORKS)
def test_the_adapters_graphs_have_all_nodes(model, tmp_path, monkeypatch):
    pytest.importorskip("pte_adapter_model_explorer", reason="Arm's adapters are not installed")
    pytest.importorskip("etrecord_adapter_model_explorer", reason="Arm's adapters are missing")
    from etrecord_adapter_model_explorer.main import ETRecordAdapter
    from pte_adapter_model_explorer.main import PTEAdapter

    monkeypatch.chdir(tmp_path)
    Path("networks.py").write_text(SOURCE)
    run = wb.profile(
        model if model == "toy_cnn" else f"networks.py:{model}",
        export=wb.ExportOptions(dtype=NETWORKS[model], etrecord=True),
        measure=wb.MeasureOptions(runs=3, processes=2, evidence=False),
    )
    files = wb.export_trace(run.path, "model-explorer", out=tmp_path / "data")
    pte = next(tmp_path.glob("out_*/artifacts/*.pte"))
    for kind, adapter, file in (
        ("pte", PTEAdapter, pte),
        ("etrecord", ETRecordAdapter, Path(f"{pte}.etrecord")),
    ):
        collections = adapter().convert(str(file), {})["graphCollections"]
        graphs = {g.id: {n.id for n in g.nodes} for c in collections for g in c.graphs}
        for data in (json.loads(f.read_text()) for f in files if f".{kind}." in f.name):
            assert sum(len(graph["results"]) for graph in data.values()) > 3
            for name, graph in data.items():
                assert set(graph["results"]) <= graphs[name]


def test_names_of_strangers_stay_text_in_one_folder(tmp_path):
    out = tmp_path / "out"
    files = wb.export_trace(make_hostile(tmp_path / "run"), "model-explorer", out=out)
    assert files
    for path in files:
        assert path.parent == out
        assert not re.search("[\x00-\x08\x0b-\x1f\u202e]", path.read_text())


def test_a_wrong_format_is_told_of_this_one(cli, tmp_path):
    (tmp_path / "x.etdump").touch()
    err = cli("trace", tmp_path / "x.etdump", "--to", "json")[2]
    assert "unknown format 'json' -> valid: csv, model-explorer, perfetto" in err
