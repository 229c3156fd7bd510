"""Sphinx: the documentation site, from the texts, notebooks and docstrings where they stand.

``python3 dev.py docs`` builds it. Pages are files of the repository at their own paths, so their
links to each other work here as on a Git host. Reference pages are generated into ``build/``.
"""

import inspect
import os
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import workbench  # noqa: E402
from workbench.records.documents import DOCUMENTS  # noqa: E402

os.environ["WORKBENCH_WIDGETS"] = "0"  # figures: a page has no kernel

project = html_title = "ExecuTorch performance workbench"
root_doc = "README"
include_patterns = [
    *("*.md", "workbench/README.md", "workbench/skills/*/SKILL.md", "build/reference/*.rst"),
    *("notebooks/*.md", "notebooks/*.ipynb", "data/*.md", "data/docs/*.md"),
]
exclude_patterns = [".venv", "node_modules", "**/.ipynb_checkpoints"]
extensions = ["myst_nb", "numpydoc", "sphinx.ext.autodoc", "sphinx_click"]
myst_heading_anchors = 3
nb_execution_mode = "force"
nb_execution_excludepatterns = ["notebooks/00_check_setup.ipynb"]  # measures this machine
nb_execution_in_temp = True
nb_execution_timeout = 600
nb_execution_raise_on_error = True
nb_merge_streams = True
nb_ipywidgets_js = {}  # no widgets are shown, and their scripts are on the network
autodoc_default_options = {"members": True, "undoc-members": True}
numpydoc_show_class_members = False
# Folders, which only a Git host can show; tests/test_docs.py checks that they exist.
nitpick_ignore = [("myst", name) for name in ("../schemas/v3", "schemas/v3", "case_studies")]
html_theme = "furo"
html_copy_source = False
html_show_search_summary = False  # summaries are fetched, which browsers refuse for local files

#: What the first page leads to.
CONTENTS = {
    "Use it": [
        *("data/docs/how_do_i", "data/docs/commands", "data/docs/keys"),
        "data/docs/troubleshooting",
        "notebooks/README",
    ],
    "Understand it": ["workbench/README", "data/README", "data/learning_path"],
    "Look it up": [
        *("build/reference/commands", "build/reference/api", "build/reference/files"),
        *("build/reference/playbooks", "data/zoo", "data/attribution"),
    ],
}
listed = {page for pages in CONTENTS.values() for page in pages}
texts = sorted(path.relative_to(ROOT) for path in (*ROOT.glob("*.md"), *ROOT.glob("data/*.md")))
pages = [str(path.with_suffix("")) for path in texts]
CONTENTS["Project"] = [page for page in pages if page not in {root_doc, *listed}]


def write_reference() -> None:
    """Write the pages whose content stands in the code."""
    folder = ROOT / "build" / "reference"
    folder.mkdir(parents=True, exist_ok=True)

    def write(name: str, title: str, *lines: str) -> None:
        (folder / f"{name}.rst").write_text("\n".join([title, "=" * len(title), "", *lines, ""]))

    tree = [".. toctree::", "   :maxdepth: 1", ""]
    found = re.findall(r"^(\S.*)\n((?:    .+\n)+)", workbench.__doc__ or "", re.MULTILINE)
    groups = {title: names.replace(",", " ").split() for title, names in found}
    for number, (title, names) in enumerate(groups.items()):
        directives = []
        for name in names:
            thing = getattr(workbench, name)
            kind = "class" if inspect.isclass(thing) else "function" if callable(thing) else "data"
            directives.append(f".. auto{kind}:: workbench.{name}\n")
        write(f"api{number}", title, *directives)
    intro = "``import workbench as wb`` gives these names; they are imported when first used.\n"
    write("api", "Python API", intro, *tree, *(f"   api{n}" for n in range(len(groups))))
    write(
        *("commands", "Commands"),
        "With ``--json``, a command prints one JSON document to stdout, also for errors. Messages",
        "go to stderr. Exit codes: 0 done, 1 the job or a check failed, 2 wrong usage, 130",
        "interrupted.\n",
        *(".. click:: workbench.cli:workbench", "   :prog: workbench", "   :nested: full"),
    )
    skills = sorted((ROOT / "workbench" / "skills").glob("*/SKILL.md"))
    paths = (f"   /{skill.relative_to(ROOT).with_suffix('')}" for skill in skills)
    write(
        *("playbooks", "Playbooks"),
        "A playbook has commands that run as they are, the files that they write, a check, and",
        "what to do on failure. ``workbench skills`` prints them, and ``workbench mcp`` offers",
        "their steps to agents.\n",
        *(*tree, *paths),
    )
    documents = []
    for name, kind in DOCUMENTS.items():
        schema = f":download:`{name}.schema.json </data/schemas/v3/{name}.schema.json>`"
        documents += [name, "-" * len(name), "", inspect.getdoc(kind) or "", "", schema, ""]
    write("files", "Files", "The JSON files of a run, an export and a portfolio.", "", *documents)


def complete(app, docname: str, source: list[str]) -> None:
    """Add a hidden table of contents to the pages that lead to others."""
    notebooks = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))
    contents = {root_doc: CONTENTS, "notebooks/README": {"Notebooks": notebooks}}
    for title, pages in contents.get(docname, {}).items():
        options = f":hidden:\n:caption: {title}"
        source[0] += "\n\n```{toctree}\n" + "\n".join([options, "", *pages, "```"])


def finish(app, problem: Exception | None) -> None:
    """Name the first page as servers and browsers expect it."""
    if problem is None and app.builder.name == "html":
        shutil.copy(Path(app.outdir) / "README.html", Path(app.outdir) / "index.html")


def setup(app) -> None:
    """Called by Sphinx."""
    write_reference()
    app.connect("source-read", complete)
    app.connect("build-finished", finish)
