"""Time by line of the model's source, the text that is kept with a program, and how it is shown."""

import html
import json
import linecache
import re
import shutil
import time
import warnings

import pytest
from exporting import make_model
from hostile_run import make_hostile
from recorded import recorded

import workbench as wb

SAMPLES = wb.sample_file("exports").parent
NAMES = sorted(path.name.removeprefix("out_") for path in SAMPLES.glob("out_*"))


@pytest.mark.parametrize("name", NAMES)
def test_lines_and_the_rest_add_up_to_the_latency(name):
    run = recorded(name)
    m, baselines = run.subject, [ab.baseline for ab in run.comparisons[:1]]
    lines = m.source
    assert lines["mean_ms"].sum() == pytest.approx(m.latency_ms)
    assert lines["share"].sum() == pytest.approx(1)
    assert lines["operators"].sum() == len(m.operators), "an operator belongs to one line"
    if baselines and run.comparisons[0].same_program:
        assert lines["baseline_ms"].sum() == pytest.approx(baselines[0].latency_ms)
    without = lines[lines["file"] == ""]
    assert len(without) == 1 and without.index[0] == len(lines) - 1
    assert not lines[["file", "line"]].duplicated().any()
    inside = lines["low_ms"] <= lines["mean_ms"]
    assert (inside & (lines["mean_ms"] <= lines["high_ms"]) | lines["low_ms"].isna()).all()


def test_a_line_has_all_instances_of_a_module_and_the_findings_about_it():
    m = recorded().subject
    lines = m.source.set_index(["file", "line"])
    row = lines.loc["workbench/models/zoo/blocks.py", 74]
    assert len(row["layers"].split(", ")) > 9
    claimed = {key for each in m.opportunities for key in each.operators}
    rows = m.operators[m.operators["source"] == "workbench/models/zoo/blocks.py:74"]
    assert bool(row["findings"]) == bool(claimed & set(rows["key"]))
    assert row["mean_ms"] == pytest.approx(rows["mean_ms"].sum())
    known = {each.id for each in m.opportunities}
    named = {name for names in lines["findings"] for name in names.split(", ") if name}
    assert named and named <= known


def lines_in(page):
    """The annotated lines of a view, without the notes and the table around them."""
    return re.search(r'<div class="wb-src.*(?=The lines with the most time)', page, re.S)[0]


def visible(page):
    return html.unescape(re.sub("<[^>]+>", " ", page.partition("</style>")[2]))


def test_the_view_has_the_code_its_time_its_findings_and_its_layers():
    m = recorded().subject
    shown = wb.show(recorded(), "source")
    text = visible(shown.html)
    assert "return x * self.scale_activation(gate)" in text
    assert re.search(r"\d+ layers ran this line", text) and "features.1.block.1" in text
    assert "class SqueezeExcitation" in text and "avx512_off → avx512_on" in text
    first = next(each for each in m.opportunities if each.operators)
    assert f"1. {first.cause[0].upper()}{first.cause[1:20]}" in text
    assert "<script" not in shown.html
    assert "blocks.py:75  return x * self.scale_activation(gate)" in str(shown)
    spent = m.source.loc[m.source["file"] == "", "share"].iloc[0]
    assert f"({100 * spent:.1f} %) has no line" in str(shown).replace("\N{NO-BREAK SPACE}", " ")


def copy_run(tmp_path, edit, name="AsTrained"):
    """A copy of a recorded run with another sidecar."""
    folder = shutil.copytree(wb.sample_run(name), tmp_path / "run")
    layers = json.loads((folder / "layers.json").read_text())
    edit(layers)
    (folder / "layers.json").write_text(json.dumps(layers))
    return wb.open_run(folder)


FILE = "data/onboarding/my_segmenter.py"


def test_a_line_that_is_fused_into_another_names_that_one(tmp_path):
    folder = shutil.copytree(wb.sample_run("Edited"), tmp_path / "run")
    layers = json.loads((folder / "Edited.layers.json").read_text())
    for origin in layers["methods"][0]["origins"]:
        line = {"aten_convolution_default": 8, "aten_relu_default": 9}.get(origin["node"], 10)
        origin["source"] = f"In [3]:{line}"
    (folder / "Edited.layers.json").write_text(json.dumps(layers))
    m = wb.open_run(folder)["Edited"]
    assert set(m.source["line"]) == {8, 10, 0}
    rows = re.findall(r'<div class="r">(?:(?!</div>).)*</div>', wb.show(m, "source").html)
    (row,) = (row for row in rows if '<span class="l">9<' in row)
    assert 'class="w">in line 8<' in row


def test_a_function_on_one_line_has_its_time(tmp_path):
    def edit(layers):
        lines = layers["sources"][FILE]["1"].split("\n")
        lines[25] = "    def place(self, x): return interpolate(x)"
        layers["sources"][FILE]["1"] = "\n".join(lines)

    run = copy_run(tmp_path, edit)
    rows = re.findall(r'<div class="r t".*?</div>', wb.show(run, "source").html)
    assert len(rows) == sum(run.subject.source["line"] > 0)
    assert any("interpolate(x)" in row and "%" in row for row in rows)


def test_without_the_text_only_the_lines_are_known(tmp_path):
    run = copy_run(tmp_path, lambda layers: layers.pop("sources"))
    shown = wb.show(run, "source")
    assert "was not kept" in shown.html and "my_segmenter.py:26" in str(shown)
    for method in (layers := json.loads((run.path / "layers.json").read_text()))["methods"]:
        for origin in method["origins"]:
            origin["source"] = ""
    (run.path / "layers.json").write_text(json.dumps(layers))
    assert "No line is known" in str(wb.show(wb.open_run(run.path), "source"))


def test_a_program_without_layers_has_no_lines(tmp_path):
    run = shutil.copytree(wb.sample_run("AsTrained"), tmp_path / "run")
    (run / "layers.json").unlink()
    assert wb.open_run(run).subject.source is None
    assert "Layers unknown" in str(wb.show(wb.open_run(run), "source"))


def test_lines_far_from_any_with_time_are_folded_and_5000_take_no_pause(tmp_path):
    def edit(layers):
        text = layers["sources"][FILE]["1"]
        lines = [f"def helper_{n}(x):\n    return x + {n}\n" for n in range(1700)]
        layers["sources"][FILE]["1"] = text + "\n" + "\n".join(lines)

    run = copy_run(tmp_path, edit)
    assert run.subject.opportunities
    began = time.perf_counter()
    shown = wb.show(run, "source").html
    assert time.perf_counter() - began < 5, "0.2 s on an idle machine"
    assert shown.count('class="r') < 100 and "helper_1699" in shown
    (far,) = re.findall(r"<summary>5\d\d\d lines: [^<]*</summary>", shown)
    assert far.endswith("helper_0, helper_1, helper_2, ...</summary>") or "helper_0" in far


def test_a_strangers_sources_stay_text_and_bounded(tmp_path):
    run = wb.open_run(make_hostile(tmp_path / "hostile"))
    page = wb.show(run, "source").html
    assert not re.search(r"<script|<img|<svg|<a |onerror=\"", page)
    assert "&lt;script&gt;" in page and "\x1b" not in lines_in(page)

    def edit(layers):
        deep = "\n".join(f"{' ' * n}def f{n}():" for n in range(3000))
        layers["sources"][FILE]["1"] += "\n" + "x" * 10**6 + "\n" + deep + "\n" * 10**5
        layers["sources"][FILE]["-5"] = "```\n\x1b[31m\x00"

    shown = wb.show(copy_run(tmp_path, edit), "source")
    assert len(shown.html) < 3_000_000 and "x" * 500 not in shown.html
    assert not re.search("[\x1b\x00]", lines_in(shown.html) + str(shown))


@pytest.mark.parametrize("name", ["toy_cnn", "squeezesam"])
def test_emulated_times_are_not_shown_and_others_are(name):
    run = recorded(name)
    text = visible(wb.show(run, "source").html)
    code = text.partition("The lines with")[0]
    assert bool(re.search(r"Σ [\d.]+", code)) == (not run.emulated)
    assert ("emulated" in text) == run.emulated


# Exports.

NET = """\
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner, self.act = nn.Linear(width, width), nn.GELU()

    def forward(self, x):
        x = self.inner(x)
        return self.act(x)


def halved(forward):
    def wrapper(self, x):
        return forward(self, x * 0.5)
    return wrapper


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(Block(8), Block(8))

    @halved
    def forward(self, x):
        return self.blocks(x).softmax(-1)
"""


@pytest.fixture(params=["site-packages"])
def package(request, tmp_path, monkeypatch):
    """A package beside others that are installed, as timm is, or elsewhere on Python's path."""
    folder = tmp_path / request.param / "likes_timm"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "net.py").write_text(NET)
    monkeypatch.syspath_prepend(folder.parent)
    monkeypatch.chdir(tmp_path)
    yield folder / "net.py"
    for name in ("likes_timm.net", "likes_timm"):
        __import__("sys").modules.pop(name, None)


def lines_of(layers):
    return {o.source.rpartition("/")[2] for m in layers.methods for o in m.origins if o.source}


@pytest.mark.whole
@pytest.mark.parametrize("package", ["site-packages", "elsewhere_installed"], indirect=True)
def test_the_source_of_a_package_is_kept_with_the_program(package, tmp_path, monkeypatch):
    import torch
    from likes_timm.net import Net

    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")  # a package is installed anywhere
    model = make_model("Net", Net().eval(), (torch.ones(1, 8),))
    layers = wb.export_model(model, root=tmp_path / "out").layers
    assert [*layers.sources] == ["likes_timm/net.py"]
    assert lines_of(layers) == {"net.py:11", "net.py:12", "net.py:17", "net.py:28"}
    (text,) = layers.sources.values()
    assert text == {1: NET.rstrip("\n")}


@pytest.mark.whole
def test_of_a_long_file_the_classes_with_operators_are_kept(package, tmp_path):
    import torch

    others = "\n".join(f"def other_{n}(x):\n    return x - {n}" for n in range(9000))
    package.write_text(f"{NET}\n{others}\n")
    from likes_timm.net import Net

    model = make_model("Net", Net().eval(), (torch.ones(1, 8),))
    (blocks,) = wb.export_model(model, root=tmp_path / "out").layers.sources.values()
    assert [text.split("\n")[0] for text in blocks.values()] == ["class Block(nn.Module):"]
    assert sum(map(len, blocks.values())) < len(NET)
    assert not any("other_" in text for text in blocks.values())


@pytest.mark.whole
def test_the_source_of_a_cell_is_kept(tmp_path):
    import torch
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    try:
        shell.run_cell(f"{NET}\nnet = Net()", store_history=True).raise_error()
        model = make_model("Net", shell.user_ns["net"].eval(), (torch.ones(1, 8),))
        layers = wb.export_model(model, root=tmp_path).layers
    finally:
        InteractiveShell.clear_instance()
    (name,) = layers.sources
    assert re.fullmatch(r"In \[\d+\]", name)
    assert layers.sources[name][1].startswith(NET)


def export_upstream(net, path):
    """A program with its ETRecord beside it, by upstream's own lines."""
    import torch
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    with torch.no_grad(), warnings.catch_warnings(action="ignore"):
        exported = torch.export.export(net.eval(), (torch.ones(1, 8),))
        edge = to_edge_transform_and_lower(
            exported, partitioner=[XnnpackPartitioner()], generate_etrecord=True
        )
        program = edge.to_executorch()
    path.write_bytes(program.buffer)
    program.get_etrecord().save(path.with_name(f"{path.name}.etrecord"))


@pytest.mark.whole
def test_of_an_etrecord_the_text_is_read_if_it_has_the_quoted_lines(package, tmp_path, monkeypatch):
    from likes_timm.net import Net

    export_upstream(Net(), tmp_path / "net.pte")

    def sources():
        linecache.clearcache()  # as in a process that did not trace it
        (blocks,) = wb.open_program(tmp_path / "net.pte").layers.sources.values()
        return blocks

    quoted = {11: "x = self.inner(x)", 12: "return self.act(x)"}
    quoted[28] = "return self.blocks(x).softmax(-1)"
    assert sources() == {1: NET}
    package.write_text(f"# an edit\n{NET}")
    assert sources() == quoted, "it has changed"
    package.unlink()
    assert sources() == quoted
    package.write_text(NET)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert sources() == quoted, "a stranger's record reads no file outside of the working folder"


@pytest.mark.whole
def test_models_of_executorch_have_lines_and_passes_those_of_nobody(tmp_path):
    model = wb.load_model("executorch:linear")
    options = wb.ExportOptions(dtype="int8")
    with warnings.catch_warnings(action="ignore"):
        layers = wb.export_model(model, options=options, root=tmp_path).layers
    (file,) = layers.sources
    assert file == "executorch/examples/models/toy_model/model.py"
    assert all("test_source" not in line for line in lines_of(layers))
