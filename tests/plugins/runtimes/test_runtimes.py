"""Other runtimes as sides of a run: eager PyTorch, torch.compile and ONNX Runtime."""

import hashlib
import importlib.metadata
import importlib.util
import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from html import escape

import pytest
import torch
from recorded import recorded

import workbench as wb
from workbench.plugins.runtimes.serve import count_busy_threads

BRIEF = wb.MeasureOptions(
    runs=4, warmup=1, processes=2, cold_start=False, evidence=False, roof=False
)
INSTALLED = ["onnx"] * all(map(importlib.util.find_spec, ("onnxruntime", "onnxscript")))
#: Every runtime; pytest says which ones are skipped, and why.
EXTRA = pytest.mark.skipif(not INSTALLED, reason="onnx is an extra: pip install '.[onnx]'")
SIDES = ["eager", pytest.param("onnx", marks=EXTRA)]


class Net(torch.nn.Module):
    """A mean that is not delegated, between layers that are, and a keyword argument."""

    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 16, 3)
        self.norm = torch.nn.BatchNorm2d(16)
        self.act = torch.nn.ReLU()
        self.head = torch.nn.Linear(16, 10)

    def forward(self, x, scale=None):
        return self.head(self.act(self.norm(self.conv(x))).mean((2, 3))) * scale


INPUTS = {"x": torch.randn(1, 3, 64, 64), "scale": torch.tensor(2.0)}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    against = ["eager", *INSTALLED]
    folder = tmp_path_factory.mktemp("run")
    return wb.profile(Net(), INPUTS, measure=BRIEF, against=against, root=folder)


@pytest.mark.cases
def test_every_runtime_is_compared_with_the_same_outputs(run):
    titles = {"eager": "eager PyTorch", "onnx": "ONNX Runtime"}
    assert [ab.baseline.name for ab in run.comparisons] == ["eager", *INSTALLED]
    for ab in run.comparisons:
        assert f"Net, ExecuTorch against {titles[ab.baseline.name]}: " in ab.text
        assert ab.text.endswith("; same outputs")
        ((_, status, evidence),) = ab.checks
        assert status == "ok", evidence
    assert run.subject.runtime == "", "the report is about ExecuTorch"
    assert not (run.checks["status"] == "fail").any(), run.checks


@pytest.mark.cases
def test_the_report_and_the_explorer_have_every_runtime(run):
    page, *_ = wb.make_report(run)
    assert all(escape(ab.text) in page.read_text() for ab in run.comparisons)
    assert wb.explore(run) is not None
    assert all(run[name].findings.empty for name in ("eager", *INSTALLED))


@pytest.mark.cases
@pytest.mark.parametrize("name", SIDES)
def test_operators_of_a_runtime_have_their_layers(run, name):
    table = run[name].operators
    layers = set(table["module"].dropna()) | set(", ".join(table["also"].dropna()).split(", "))
    assert {"conv", "head", "act"} <= layers
    sources = table["source"].dropna()
    assert sources.str.contains(r"test_runtimes\.py:\d+").all(), sources
    assert table["share"].sum() == pytest.approx(1)
    assert (table.loc[table["module"] == "conv", "category"] == "Convolution").any()


@pytest.mark.cases
@pytest.mark.parametrize("name", SIDES)
def test_a_layer_says_what_executorch_does_otherwise(run, name):
    layers = run.compare(name).layers
    differs = layers.set_index("name")["differs"].dropna()
    assert "not delegated: mean" in " ".join(differs)


@pytest.mark.cases
@pytest.mark.parametrize("name", SIDES[1:])
def test_products_with_biases_and_norms_with_equal_weights_have_their_own_layers(name, tmp_path):
    linear, norm = (lambda: torch.nn.Linear(256, 256)), (lambda: torch.nn.LayerNorm(256))
    net, x = torch.nn.Sequential(linear(), norm(), linear(), norm()), torch.randn(1, 128, 256)
    run = wb.profile(net, x, measure=BRIEF, against=[name], root=tmp_path)
    table = run[name].operators
    products = table[table["category"] == "GEMM"]
    assert sorted(products["module"]) == ["0", "2"]
    norms = table[table["name"].str.startswith(("LayerNormalization", "MVN"))]
    assert sorted(norms["module"]) == ["1", "3"]


class Products(torch.nn.Module):
    """A product of two activations, as attention has, which XNNPACK takes with three dimensions."""

    def __init__(self):
        super().__init__()
        self.query = torch.nn.Linear(64, 64)

    def forward(self, x):
        return torch.mm(self.query(x), x.t())


class Embeddings(torch.nn.Module):
    """Looks up tokens, and pools them."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(1000, 256)
        self.pool = torch.nn.Linear(256, 256)

    def forward(self, tokens):
        return self.pool(self.table(tokens).mean(1))


class Dense(torch.nn.Module):
    """Layers that XNNPACK takes."""

    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(64, 256)
        self.down = torch.nn.Linear(256, 64)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


@pytest.mark.cases
@pytest.mark.parametrize(
    ("net", "x", "export", "cause"),
    [
        (Products(), torch.randn(64, 64), {}, "not delegated: mm"),
        (Embeddings(), torch.ones(1, 128, dtype=torch.int64), {}, "not delegated: embedding"),
        (Dense(), torch.randn(64, 64), {"backend": "portable"}, r"not delegated: .*mm"),
        (Dense(), torch.randn(64, 64), {"dtype": "int8"}, "int8 instead of fp32"),
    ],
    ids=["one product", "embeddings", "nothing delegated", "int8"],
)
def test_users_who_ask_why_pytorch_is_faster_are_told_the_cause(net, x, export, cause, tmp_path):
    options = wb.ExportOptions(**export)
    run = wb.profile(net, x, options, BRIEF, against=["eager"], root=tmp_path)
    assert "ExecuTorch against eager PyTorch" in run.compare().text
    assert run.compare().layers["differs"].dropna().str.contains(cause).any()


@pytest.mark.cases
def test_a_side_of_an_older_workbench_is_made_again(tmp_path, monkeypatch):
    (tmp_path / "net.py").write_text(
        "import torch\nNet = torch.nn.ReLU\nget_example_inputs = lambda: (torch.randn(1, 4),)\n"
    )
    program = wb.export_model(f"{tmp_path / 'net.py'}:Net", root=tmp_path)

    def open_eager():
        wb.profile(program, measure=BRIEF, against=["eager"], root=tmp_path)
        return {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.eager.pt2")}

    made = open_eager()
    assert len(made) == 1 and open_eager() == made, "not traced again"
    version = importlib.metadata.version
    later = {"executorch-workbench": "99"}
    monkeypatch.setattr(
        importlib.metadata, "version", lambda name: later.get(name) or version(name)
    )
    assert len(open_eager()) == 2


@pytest.mark.cases
def test_the_threads_are_those_asked_for_and_the_program_is_found_again(run, cli):
    pte = run.subject.program.pte
    brief = ["--threads", "2", "--processes", "1", "--runs", "2", "--measure", "evidence=no"]
    more = ["--measure", "cold_start=no", "--out", str(run.path.parents[1] / "two")]
    code, out, _ = cli("run", pte, "--against", "eager", *brief, *more)
    assert (code, "ExecuTorch against eager PyTorch" in out) == (0, True)
    assert list(run.path.parents[1].glob("artifacts/*.eager.pt2")), "not traced again"


@pytest.mark.cases
@pytest.mark.skipif("onnx" not in INSTALLED, reason="onnxruntime, an extra, is not installed")
def test_a_file_of_onnx_is_a_side(run, tmp_path):
    made = next(run.path.parents[1].glob("artifacts/*.onnx.onnx"))
    file = tmp_path / "theirs.onnx"
    file.write_bytes(made.read_bytes())
    options = replace(BRIEF, processes=1, against=(str(file),))
    theirs = wb.measure(run.subject.program.pte, options=options, root=tmp_path)
    assert "ExecuTorch against ONNX Runtime" in theirs.compare().text
    assert not theirs.compare().operators.empty
    assert (theirs.path / "analysis_summary.json").is_file()
    file.write_bytes(b"no model")
    with pytest.raises(wb.WorkbenchError, match=r"onnx|ONNX|Protobuf"):
        wb.measure(run.subject.program.pte, options=options, root=tmp_path)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"against": ("eager",)},
            "its PyTorch model is not known -> workbench profile MODEL",
        ),
        ({"against": ("nowhere.onnx",)}, r"nowhere\.onnx: no such file"),
        (
            {"against": ("eger",)},
            r"unknown runtime 'eger' -> did you mean 'eager'\? valid: compile",
        ),
    ],
)
def test_what_cannot_be_a_side_is_one_line(conv_pte, options, words):
    with pytest.raises(wb.WorkbenchError, match=words):
        wb.measure(conv_pte, options=wb.MeasureOptions(**options))


def test_runtimes_are_separated_by_commas_which_a_file_may_have(conv_pte, cli, write):
    name = write("a,b.onnx", "no model")
    code, _, err = cli("run", conv_pte, "--against", "eager,eger")
    assert code == 2 and "unknown runtime 'eger' -> did you mean 'eager'?" in err
    code, _, err = cli("run", conv_pte, "--against", name, "--against", "nowhere.pte,eager")
    assert code == 1 and "nowhere.pte: " in err


def test_a_missing_package_names_the_line_that_installs_it(conv_pte, monkeypatch):
    found = importlib.util.find_spec
    absent = lambda name, *rest: None if name == "onnxruntime" else found(name, *rest)  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", absent)
    options = wb.MeasureOptions(against=("onnx",))
    with pytest.raises(wb.WorkbenchError, match=r"not installed -> .* -e \S+\[onnx\]"):
        wb.measure(conv_pte, options=options)


def test_the_largest_category_is_that_of_each_runtime():
    for ab in wb.open_run(wb.sample_run("Sentences")).comparisons:
        assert ab.baseline.use.off > 0.04 and not ab.baseline.use.blank
        for side in (ab.baseline, ab.candidate):
            vars(side)["share_error"] = 0.0
            vars(side).pop("largest", None)
        vars(ab).pop("verdict", None)
        ours, theirs = (
            m.categories.set_index("category")["share"] for m in (ab.candidate, ab.baseline)
        )
        shares = f"{ours.max():.0%} ({ab.baseline.runtime}: {theirs.idxmax()} {theirs.max():.0%})"
        assert f"bottleneck {ours.idxmax()} {shares.replace('%', ' %')}; same outputs" in ab.text


def test_a_speedup_is_the_ratio_of_the_times_beside_it():
    """Both are scaled to the latency, as tracing slows the runtimes differently."""
    for ab in recorded("Sentences").comparisons:
        ratios = ab.layers["baseline_ms"] / ab.layers["candidate_ms"]
        assert ab.layers["speedup"].to_list() == pytest.approx(ratios.to_list(), rel=0.07)
        is_long = ab.layers[["baseline_ms", "candidate_ms"]].min(axis=1) > 0.05
        assert is_long.sum() >= 4
        assert (ab.layers["speedup"] / ratios - 1)[is_long].abs().max() < 0.01


def test_findings_are_about_the_program_of_which_there_is_one():
    assert "first program" not in str(wb.show(recorded("Sentences"), "findings"))


@pytest.mark.whole
def test_no_runtime_is_imported_by_the_core():
    code = "import sys, workbench as wb; wb.profile; print(json.dumps([*sys.modules]))"
    done = subprocess.run([sys.executable, "-c", f"import json; {code}"], capture_output=True)
    assert not {"onnx", "onnxruntime", "torch"} & set(json.loads(done.stdout))


def test_a_matrix_names_runtimes_and_files(cli, tmp_path):
    pytest.importorskip("workbench.plugins.batch")
    matrix = tmp_path / "matrix.yaml"
    matrix.write_text("models: [toy_cnn]\nagainst: [eager, nowhere.pte]\n")
    code, _, err = cli("batch", matrix, "--dry-run")
    assert code == 1 and f"{tmp_path / 'nowhere.pte'}: no such file" in err
    matrix.write_text("models: [toy_cnn]\nagainst: [eager]\n")
    code, out, _ = cli("batch", matrix, "--dry-run")
    assert (code, "toy_cnn" in out) == (0, True)


NETWORK = """
import torch
class Net(torch.nn.Linear):
    def __init__(self): super().__init__(8, 8)
    def get_example_inputs(self): return (torch.randn(4, 8),)
"""


@pytest.mark.cases
def test_a_batch_compares_with_another_runtime(cli, tmp_path):
    pytest.importorskip("workbench.plugins.batch")
    (tmp_path / "net.py").write_text(NETWORK)
    settings = "processes: 1\nruns: 2\nevidence: false\nroof: false\ncold_start: false\n"
    matrix = tmp_path / "matrix.yaml"
    matrix.write_text(f"models: ['net.py:Net']\nagainst: [eager]\n{settings}")
    code, _, err = cli("batch", matrix, "--out", tmp_path / "out")
    assert code == 0, err
    page = (tmp_path / "out" / "index.html").read_text()
    (cell,) = json.loads((tmp_path / "out" / "portfolio.json").read_text())["cells"]
    ours, theirs = cell["rows"]
    assert (ours["against"], theirs["experiment"]) == ("eager", "eager")
    assert "against eager" in page


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the times of threads")
@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_threads_that_another_runtime_uses_are_counted(count):
    together, data = threading.Barrier(count), bytes(2**21)

    def work(_):
        together.wait()
        hashlib.sha256(data)

    with ThreadPoolExecutor(count) as pool:
        assert count_busy_threads(lambda: [*pool.map(work, range(count))]) == count
