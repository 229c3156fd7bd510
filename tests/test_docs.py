"""The documentation's own pages: their commands exist, and the site leads to every page."""

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import click
import pytest
from command_line import COMMANDS, list_playbooks

import workbench as wb

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted((ROOT / "data" / "docs").rglob("*.md"))
TEXTS = [*PAGES, *(ROOT / "data").glob("*.md"), *ROOT.glob("*/README.md"), ROOT / "README.md"]
TEXTS += (ROOT / "tests" / "benchmarks" / "records").glob("*.md")


def calls_of(page):
    """The command lines of a page's blocks: name and arguments, without comments."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    lines = "".join(blocks).splitlines()
    return [line for line in lines if line.startswith("workbench ")]


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_commands_of_a_page_exist_and_take_these_arguments(page):
    for line in calls_of(page):
        _, name, *words = shlex.split(line, comments=True)
        COMMANDS[name].make_context(name, words)
    for line in re.findall(r"(?<!`)`(workbench [^`]+)`(?!`)", page.read_text()):
        _, name, *words = shlex.split(line)
        with suppress(click.MissingParameter):  # in a text, a command may go without its subject
            COMMANDS[name].make_context(name, words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_options_in_its_text_exist(page):
    params = [param for command in COMMANDS.values() for param in command.params]
    known = {option for param in params for option in (*param.opts, *param.secondary_opts)}
    mentioned = set(re.findall(r"`[^`]*?(--[a-z][a-z-]+)", page.read_text()))
    assert mentioned - known == {"--debug", "--help"} & mentioned


NUMBERS = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
NUMBERS += " fifteen sixteen seventeen eighteen nineteen twenty"


def test_notebooks_and_playbooks_are_as_many_as_texts_say_and_those_named_exist():
    notebooks, words = sorted((ROOT / "notebooks").glob("*.ipynb")), NUMBERS.split()
    counts = {
        "notebooks": len(notebooks),
        "playbooks": len(list((ROOT / "workbench" / "skills").glob("*/SKILL.md"))),
    }
    texts = [path.read_text() for path in (*TEXTS, ROOT / "CONTRIBUTING.md", *notebooks)]
    for text in texts:
        for number, noun in re.findall(rf"\b({'|'.join(words[2:])}) (notebooks|playbooks)\b", text):
            assert words.index(number) == counts[noun], f"{number} {noun}"
        named = re.findall(r"\b[Nn]otebooks? (\d\d)(?:(?:,| and| to) (\d\d))*", text)
        assert {n for pair in named for n in pair if n} <= {path.name[:2] for path in notebooks}


@pytest.fixture
def conf(monkeypatch, tmp_path):
    """The configuration of the site, which writes its pages into another folder."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delenv("WORKBENCH_WIDGETS", raising=False)
    monkeypatch.setenv("WORKBENCH_WIDGETS", "")  # put back at the end
    spec = importlib.util.spec_from_file_location("conf", ROOT / "data" / "docs" / "conf.py")
    module = importlib.util.module_from_spec(spec)
    module.tags = ()  # as Sphinx sets them
    spec.loader.exec_module(module)
    return module


def test_the_site_leads_to_every_page(conf):
    assert conf.CONTENTS["Project"][:1] == ["CHANGELOG"]
    listed = {page for pages in conf.CONTENTS.values() for page in pages}
    included = {
        path.relative_to(ROOT).with_suffix("").as_posix()
        for pattern in conf.include_patterns
        for path in ROOT.glob(pattern)
        if path.suffix == ".md" and path.name != "SKILL.md"
    }
    plugins = {f"data/docs/plugins/{name}" for name in conf.PLUGIN_PAGES}
    assert included - listed - plugins == {conf.root_doc}
    generated = {page for page in listed if page.startswith("build/")}
    assert all((ROOT / f"{page}.md").is_file() for page in listed - generated)


def test_nothing_installs_the_workbench_by_a_name_that_is_on_no_index():
    texts = [*TEXTS, *ROOT.glob(".github/**/*.yml"), *ROOT.glob("notebooks/*.ipynb")]
    texts += [*ROOT.glob("workbench/*/*/SKILL.md"), *ROOT.glob("*.md")]
    called = re.compile(r"pip install [^\n]*(?<![\w./-])executorch-workbench(?![/.])")
    assert [path.name for path in texts if called.search(path.read_text())] == []


def test_reference_pages_have_every_public_name_and_playbook(conf, monkeypatch, tmp_path):
    links = {"data": ROOT / "data", "workbench": ROOT / "workbench"}
    for name, target in links.items():
        (tmp_path / name).symlink_to(target)
    monkeypatch.setattr(conf, "ROOT", tmp_path)
    conf.write_reference()
    pages = {path.name: path.read_text() for path in (tmp_path / "build/reference").iterdir()}
    api = "".join(text for name, text in pages.items() if name.startswith("api"))
    assert {name for name in wb.__all__ if f":: workbench.{name}\n" not in api} == set()
    assert pages["playbooks.rst"].count("SKILL") == len(list_playbooks())


def test_the_example_that_readme_leads_with_is_one_in_which_the_bottleneck_moves():
    comparison = wb.open_run(wb.sample_run("mobilenet_v3_small_int8")).compare()
    shift = comparison.shift.set_index("category")
    before, after = (shift[f"rank_{when}"].idxmin() for when in ("before", "after"))
    assert (before, after) == ("GEMM", "Convolution")
    shares = {
        f"{when} {category}": f"{100 * shift.at[category, f'share_{when}']:.2g} %"
        for category in (before, after, "Data Movement")
        for when in ("before", "after")
    }
    text = " ".join((ROOT / "README.md").read_text().split())
    speedup, interval = re.search(
        r"([\d.]+x) faster .*95 % interval ([\d.-]+)", comparison.text
    ).groups()
    assert f"is {speedup} faster with all extensions" in text
    assert f"(95 % interval {interval})" in text
    assert f"half of the time ({shares['before GEMM']})" in text
    assert f"convolutions do ({shares['after Convolution']})" in text
    moved = f"{shares['after Data Movement']} instead of {shares['before Data Movement']}"
    assert f"moving data takes {moved}" in text
    alt = f"GEMM takes {shares['before GEMM']} of the time at SSE2, convolutions "
    assert f"{alt}{shares['after Convolution']} at AVX-512" in text


def test_the_line_that_readme_leads_with_takes_half_of_an_inference():
    m = wb.open_run(wb.sample_run("AsTrained")).subject
    first = m.source.iloc[0]
    assert first["file"] == "data/onboarding/my_segmenter.py" and 0.45 < first["share"] < 0.55
    assert m.opportunities[0].id in first["findings"] and m.opportunities[0].remedy == "constants"


#: Pages whose commands run in a folder that has what they name.
TASKS = [ROOT / "data" / "docs" / "how_do_i.md", *(ROOT / "data/docs/plugins").glob("[a-z]*.md")]
#: What no test machine has, or what does not end by itself.
ELSEWHERE = {
    "--target android": "needs a phone",
    "--target ssh": "needs a board",
    "--toggle sme2": "needs an Arm CPU",
    "timm:": "needs timm",
    "torchvision:": "needs torchvision",
    "--against onnx": "needs an extra",
    "workbench lab": "does not end",
    "speaks.pte": "needs three models; see test_language_models.py",
    "--dask": "takes minutes; see test_batch_real.py",
}
if importlib.util.find_spec("workbench.plugins.llm") is None:
    ELSEWHERE["llama.pte"] = "needs the plug-in of language models"
#: Options that shorten a command; the last one counts.
SHORTER = {"workbench optimize": " --budget 2m"}
MODEL = """
import torch
from torch import nn
class MyNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 32, 3, 2), nn.Conv2d(32, 64, 3, 2)
        self.head = nn.Linear(64, 10)
    def forward(self, x):
        for conv in (self.first, self.second):
            x = conv(x)
            x = x * torch.clamp(x + 3, 0, 6) / 6  # `optimize` finds what makes this faster
        return self.head(x.mean((2, 3)))
def get_example_inputs():
    return (torch.randn(1, 3, 64, 64),)
"""


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A folder with the files that the page names; runs the commands there."""
    import matplotlib.image
    import numpy as np
    import torch

    folder = tmp_path_factory.mktemp("how_do_i")

    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    told = {"env": {**os.environ, "PATH": path}, "capture_output": True, "text": True}

    def run(line):
        return subprocess.run(line, shell=True, cwd=folder, timeout=600, **told)

    def export(name, words):
        assert run(f"workbench export {words}").returncode == 0
        made = max(folder.glob("out_*/artifacts/*.pte"), key=lambda path: path.stat().st_mtime)
        for path in made.parent.glob(f"{made.name}*"):
            shutil.copy(path, folder / path.name.replace(made.name, name))
        shutil.copytree(made.parent, folder, dirs_exist_ok=True)

    (folder / "my.py").write_text(MODEL)
    namespace = {}
    exec(MODEL, namespace)
    torch.save(namespace["MyNet"]().state_dict(), folder / "weights.pt")
    (folder / "photos").mkdir()
    matplotlib.image.imsave(folder / "photos" / "1.png", np.zeros((64, 64, 3)))
    sizes = {"dim": 64, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "vocab_size": 128}
    sizes |= {"hidden_dim": 96, "norm_eps": 1e-5, "rope_theta": 1e4}
    (folder / "params.json").write_text(json.dumps(sizes))
    for name, words in {
        "new.pte": "my.py:MyNet --dtype fp16",
        "old.pte": "my.py:MyNet",
        "model.pte": "my.py:MyNet",
        "llama.pte": "llm:params.json",
    }.items():
        if name not in ELSEWHERE:
            export(name, words)
    sample = ROOT / "data" / "samples"
    for name, model in {
        "RUN": "mobilenet_v3_small", "RUN_A": "toy_cnn", "RUN_B": "toy_cnn", "RUN_C": "toy_cnn",
        "RUN_D": "unet_small", "main": "mobilenet_v3_small",
    }.items():  # fmt: skip
        shutil.copytree(next((sample / f"out_{model}" / "runs").iterdir()), folder / name)
    trace = next((folder / "RUN" / "avx512_on").glob("*.etdump"))
    (folder / "traces").mkdir()
    for target in ("traces/mine.etdump", "RUN/avx512_on/trace.etdump"):
        shutil.copy(trace, folder / target)
    (folder / "matrix.yaml").write_text("models: [my.py:MyNet]\ndtypes: [fp32]\ntargets: host\n")
    assert run("workbench analyze main").returncode == 0
    return run


@pytest.mark.campaign
@pytest.mark.timeout(1200)  # on a busy machine, the files of the first one take minutes
@pytest.mark.parametrize("line", [line for page in TASKS for line in calls_of(page)])
def test_the_commands_of_tasks_run(workplace, line):
    for words, reason in ELSEWHERE.items():
        if words in line:
            pytest.skip(reason)
    shorter = next((more for words, more in SHORTER.items() if line.startswith(words)), "")
    done = workplace(line + shorter)
    assert "Traceback" not in done.stderr
    # That nothing helped is an answer; the first search makes the recipe that a later line takes.
    assert done.returncode == 0 or "nothing helped" in done.stdout, done.stderr[-2000:]
