"""A layer alone: the right operators are compared, and the judgement says what intervals allow."""

import dataclasses
import json
import shlex
import shutil

import pytest
import torch
from recorded import recorded
from torch import nn

import workbench as wb
from workbench.errors import UsageError, WorkbenchError
from workbench.export.traced import trace_model
from workbench.models.loader import load_model
from workbench.plugins.replay import findings
from workbench.plugins.replay.layer import (
    compare_replay,
    describe_ratio,
    extract_layer,
    keys_of_layer,
)


@pytest.fixture(scope="module")
def sample():
    return recorded()


def test_a_layer_has_the_operators_that_compute_in_it(sample):
    facts = sample["avx512_on", 1]
    keys = keys_of_layer(facts, "features.5.block.1")
    modules = set(facts.costs.loc[keys, "module"])
    assert modules
    assert all(m.startswith("features.5.block.1") for m in modules)
    assert not keys_of_layer(facts, "features.5.bloc")
    first = facts.costs.loc[keys_of_layer(facts, "features.0.0")]
    assert set(first["role"]) == {"compute"}, "no change of layout that the exporter made up"


def test_a_layer_against_itself_takes_the_same(sample):
    replay = compare_replay(sample, "classifier", sample)
    alone = replay.times[["alone_ms", "alone_low_ms", "alone_high_ms"]]
    # Here "alone" is the whole model, of which the layer is a part.
    assert (replay.times["within_ms"].to_numpy() < alone["alone_ms"].to_numpy()).all()
    assert replay.times["experiment"].tolist() == ["avx512_off", "avx512_on"]
    assert "slower alone" in replay.texts[0]


def test_a_layer_without_operators_cannot_be_compared(sample):
    with pytest.raises(WorkbenchError, match="no operator"):
        compare_replay(sample, "nothing", sample)


def row(ratio, half):
    return {"ratio": ratio, "ratio_low": ratio - half, "ratio_high": ratio + half}


@pytest.mark.parametrize(
    ("ratio", "half", "word"),
    [
        (1.0, 0.05, "the same alone"),
        (0.6, 0.05, "faster alone"),
        (1.6, 0.05, "slower alone"),
        (1.0, 0.5, "too wide"),
        (0.8, 0.3, "too wide"),
        (float("nan"), 0.0, "too short"),
    ],
)
def test_the_judgement_says_what_the_interval_allows(ratio, half, word):
    assert word in describe_ratio(row(ratio, half))


MODEL = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.unused = nn.Conv2d(3, 4, 3), nn.Identity()
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.first(x).mean((2, 3)))

def get_example_inputs():
    return (torch.ones(1, 3, 8, 8),)
"""


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    path = tmp_path_factory.mktemp("net") / "net.py"
    path.write_text(MODEL)
    model = load_model(f"{path}:Net")
    return model, trace_model(model).exported


def test_a_layer_is_taken_with_the_inputs_that_it_gets(net):
    model, exported = net
    layer = extract_layer(model, exported, "head")
    (given,) = layer.example_inputs
    assert tuple(given.shape) == (1, 4)
    assert layer.name == "Net.head"
    assert "Net" in layer.input_source
    expected = model.module(*model.example_inputs)
    assert (layer.module(given) == expected).all()


@pytest.mark.parametrize("layer", ["heat", "unused"])
def test_a_layer_that_computes_nothing_is_refused(net, layer):
    with pytest.raises(UsageError, match=f"unknown layer '{layer}'"):
        extract_layer(*net, layer)


def test_a_run_without_export_cannot_be_replayed(tmp_path):
    from workbench.store import load_run, save_run

    run = load_run(wb.sample_run())
    save_run(dataclasses.replace(run, export=None), tmp_path)
    with pytest.raises(UsageError, match="not exported here"):
        wb.replay_layer(tmp_path, "features.0.0")


@pytest.mark.cases
@pytest.mark.timeout(900)
def test_a_layer_of_a_run_is_measured_alone(tmp_path, cli):
    """The command that a finding has for it names the model, which is code in a file."""
    (tmp_path / "net.py").write_text(MODEL)
    program = wb.export_model(f"{tmp_path}/net.py:Net", root=tmp_path / "out")
    few = wb.MeasureOptions(runs=4, processes=2)
    run = wb.measure(program, options=few, root=tmp_path / "out")
    command = run.subject.complete_command(findings.command(run.subject, "first"))
    code, out, err = cli(*shlex.split(command)[1:], "--runs", "4", "--processes", "2")
    assert code == 0, err
    assert "first takes" in out


@pytest.mark.cases
@pytest.mark.timeout(900)
def test_a_layer_of_a_module_is_measured_in_its_process(tmp_path):
    """All calls of the layer count, with the inputs that each has."""
    layer = nn.Linear(64, 64)
    module, x = nn.Sequential(layer, nn.ReLU(), layer), torch.randn(2, 64)
    few = wb.MeasureOptions(runs=4, processes=2)
    run = wb.measure(wb.export_model(module, x, root=tmp_path), options=few, root=tmp_path)
    replay = wb.replay_layer(run.path, "0", few)
    assert (replay.times["alone_ms"] > 0).all()
    assert replay.run_dir.is_relative_to(tmp_path / "replay")
    assert findings.command(run.subject, "0").startswith("wb.replay_layer(")
    with pytest.raises(UsageError, match="unknown layer"):
        wb.replay_layer(run.path, "3")


@pytest.mark.parametrize("by", ["source", "model"])
def test_replay_runs_no_code_that_only_the_manifest_names(tmp_path, by):
    evil, mark = tmp_path / "evil.py", tmp_path / "ran"
    evil.write_text(f"open({str(mark)!r}, 'w')\n")
    folder = shutil.copytree(wb.sample_run("toy_cnn"), tmp_path / "run")
    content = json.loads((folder / "manifest.json").read_text())
    content["export"]["model"] = "Net" if by == "source" else f"{evil}:Net"
    content["export"]["source"] = str(evil) if by == "source" else ""
    (folder / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(
        wb.WorkbenchError, match=r"is code in .*evil\.py.* -> if you trust it: --model"
    ):
        wb.replay_layer(folder, "features.0")
    assert not mark.exists()
