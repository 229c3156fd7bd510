"""Layers, file names, version pins, import cost, and the READMEs."""

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import grimp
import house
import pytest
import yaml

import workbench as wb

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "workbench"
#: How many names plug-ins may import. A name more here is one that a stranger has to learn, too.
SEAM = {"api": 20, "pages": 19, "graphs": 39, "jobs": 44}


def pins_in(text):
    found = re.findall(r"^(?:\s*- )?([\w.-]+)==(\S+)$", text, re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in found}


def test_layers_import_downwards_only():
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([lint, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_plug_ins_import_the_package_and_its_seam_alone():
    assert not house.list_inner(ROOT)
    names = house.list_seam(ROOT)
    assert {seam: len(each) for seam, each in names.items()} == SEAM
    for seam, exported in names.items():
        module = importlib.import_module(f"workbench.{seam}")
        assert {*module.__all__} == exported
        assert all(hasattr(module, name) for name in exported)


def test_no_conditional_expression_stands_in_another():
    nested = [
        f"{path}:{node.lineno}"
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.IfExp)
        and any(isinstance(part, ast.IfExp) for part in (node.test, node.body, node.orelse))
    ]
    assert not nested


def test_no_modules_import_each_other():
    graph = grimp.build_graph("workbench", exclude_type_checking_imports=True, cache_dir=None)
    above = {module: graph.find_upstream_modules(module) for module in graph.modules}
    circles = {(a, b) for a, others in above.items() for b in others if a < b and a in above[b]}
    assert not circles, "imports inside functions count too"


def test_every_package_is_pinned_once_and_has_hashes():
    pins = pins_in((ROOT / "constraints.txt").read_text())
    assert len(pins) == len((ROOT / "constraints.txt").read_text().splitlines())
    text = (ROOT / "hashes.txt").read_text().replace(" \\\n    --hash=sha256:", " ")
    hashed = [line.split() for line in text.splitlines()]
    del pins["torch"]  # its CPU build has other hashes than the default build
    assert pins_in("\n".join(pin for pin, *_ in hashed)) == pins
    assert all(hashes and all(len(h) == 64 for h in hashes) for _, *hashes in hashed)


def test_conda_installs_the_packages_by_name_and_torch_without_cuda():
    *_, pip = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    asked = {"torch", "executorch", "jupyterlab", "ipywidgets", "matplotlib", "pandas", "papermill"}
    assert asked <= {*pip["pip"]} and "--constraint constraints.txt" in pip["pip"]
    assert asked <= pins_in((ROOT / "constraints.txt").read_text()).keys()
    assert "--extra-index-url https://download.pytorch.org/whl/cpu" in pip["pip"]


def licence_of(package):
    """What a package states: an expression, else its classifier, else its text's first line."""
    about = metadata.metadata(package)
    classes = [text for text in about.get_all("Classifier", []) if "License ::" in text]
    stated = classes or (about.get("License") or "?").splitlines()
    return about.get("License-Expression") or stated[0].rpartition(" :: ")[2]


def test_licences_of_the_dependencies_are_listed():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    rows = dict(re.findall(r"^\| ([\w-]+) \| .+ \| (.+) \|$", text, re.M))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {re.match(r"[\w.-]+", line)[0] for line in project["dependencies"]}
    assert wanted <= rows.keys()
    stated = {name: licence_of(name) for name in wanted}
    assert stated == {name: rows[name] for name in wanted}


@pytest.mark.parametrize("path", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda p: p.name)
def test_workflows_are_valid_and_their_commands_exist(path, cli):
    text = path.read_text()
    assert yaml.safe_load(text)["name"]
    for name, rest in re.findall(r"^\s+- run: workbench (\w+) (.+)$", text, re.M):
        _, options, _ = cli(name, "--help")
        assert set(re.findall(r"--[\w-]+", rest)) <= set(re.findall(r"--[\w-]+", options))


def test_import_is_cheap_and_analysing_needs_no_torch():
    code = (
        "import sys, time; t = time.process_time(); import workbench as wb; dir(wb);"
        "print(time.process_time() - t, 'pandas' in sys.modules);"
        "wb.list_models(); wb.export_model; wb.open_run(wb.sample_run()).findings;"
        "print({'torch', 'executorch'} & {name.partition('.')[0] for name in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    seconds, *others = done.stdout.split()
    assert others == ["False", "set()"]
    assert float(seconds) < 0.3


@pytest.mark.cases
def test_texts_about_a_run_need_no_drawing():
    code = (
        "import sys; from workbench.cli import workbench\n"
        "for name in ('findings', 'compare', 'history'):"
        " workbench([name, sys.argv[1]], standalone_mode=False)\n"
        "print({'torch', 'matplotlib', 'IPython', 'ipywidgets'} & sys.modules.keys())"
    )
    command = [sys.executable, "-c", code, wb.sample_run("mobilenet_v3_small")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


def test_the_readme_is_short_and_the_site_lists_every_command(cli):
    assert len((ROOT / "README.md").read_text().split()) <= 700
    pages = [ROOT / "data/docs/commands.md", *ROOT.glob("data/docs/plugins/*.md")]
    tables = [path.read_text().partition("| command |")[2].partition("\n\n")[0] for path in pages]
    listed = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]*)`", "".join(tables)))))
    commands = re.findall(r"^  (\w+)  ", cli("--help")[1].partition("Commands:")[2], re.M)
    assert len(commands) > 10 and set(commands) <= listed


@pytest.mark.parametrize(
    "page",
    [*ROOT.glob("*.md"), *ROOT.glob("[!.]*/*.md"), *ROOT.glob("data/docs/**/*.md")],
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_links_of_a_page_exist(page):
    for target in re.findall(r"\]\((?!https?:|.*build/)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


#: Packages whose private parts may be named in `upstream.py` only. Python's own are no others'.
STANDARD = sys.stdlib_module_names | {"workbench"}


def list_own_names(trees):
    """The names of our own functions, classes and attributes that begin with an underscore."""
    names = set()
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                names.add(node.attr)
    return names


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


def list_private_uses(tree, own):
    """Lines that name a private part of another package, as a name, a text or a keyword."""
    for node in ast.walk(tree):
        names, modules = [], []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            modules = [node.module]
            if node.module.partition(".")[0] not in STANDARD:
                names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names = [node.attr]
        elif isinstance(node, ast.keyword) and node.arg:
            names = [node.arg]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in READERS:
            names = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
        others = [m for m in modules if m.partition(".")[0] not in STANDARD]
        names += [part for module in others for part in module.split(".")]
        for name in names:
            if isinstance(name, str) and is_private(name) and name not in own:
                yield f"{node.lineno}: {name}"


READERS = ("getattr", "hasattr", "setattr", "replaced")
#: Of Python itself.
PYTHONS = {"_exit", "_base_executable", "_replace", "_asdict", "_fields"}


def test_private_parts_of_other_packages_are_named_in_one_file_only():
    trees = {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}
    own = list_own_names(trees.values()) | PYTHONS
    uses = {
        str(path.relative_to(PACKAGE)): list(list_private_uses(tree, own))
        for path, tree in trees.items()
        if path.name != "upstream.py"
    }
    assert {path: found for path, found in uses.items() if found} == {}
    assert list(list_private_uses(trees[PACKAGE / "upstream.py"], own))
