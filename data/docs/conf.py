"""Sphinx: the documentation site, from the texts, notebooks and docstrings where they stand.

``python3 dev.py docs`` builds it. Pages are files of the repository at their own paths, so their
links to each other work here as on a Git host. Reference pages are generated into ``build/``.
"""

import html
import inspect
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import workbench  # noqa: E402

os.environ["WORKBENCH_WIDGETS"] = "0"  # figures: a page has no kernel

project = html_title = "ExecuTorch performance workbench"
root_doc = "data/docs/index"
include_patterns = [
    *("*.md", "workbench/README.md", "workbench/skills/*/SKILL.md", "build/reference/*.rst"),
    *("notebooks/*.md", "notebooks/*.ipynb", "data/*.md", "data/docs/*.md"),
    *("data/docs/plugins/*.md", "workbench/plugins/*/SKILL.md"),
    "tests/benchmarks/records/*.md",
]
exclude_patterns = [".venv", "node_modules", "**/.ipynb_checkpoints"]
extensions = ["myst_nb", "numpydoc", "sphinx.ext.autodoc", "sphinx_click"]
myst_heading_anchors = 3
nb_execution_mode = "force"
# Notebook 00 measures this machine. With ``-t one_notebook``, only one is run: papermill runs all.
excluded = "notebooks/0[02-9]* notebooks/1*" if "one_notebook" in tags else "notebooks/00*"  # noqa: F821
nb_execution_excludepatterns = excluded.split()
nb_execution_in_temp = True
nb_execution_timeout = 600
nb_execution_raise_on_error = True
nb_merge_streams = True
nb_ipywidgets_js = {}  # no widgets are shown, and their scripts are on the network
autodoc_default_options = {"members": True, "undoc-members": True}
numpydoc_show_class_members = False
# Folders, which only a Git host can show; tests/test_docs.py checks that they exist.
FOLDERS = ("../workbench/skills", "case_studies")
nitpick_ignore = [("myst", name) for name in FOLDERS]
html_theme = "furo"
html_copy_source = False
html_static_path = ["site.js"]
html_js_files = ["site.js"]

#: What the first page leads to.
CONTENTS = {
    "Use it": [
        *("data/docs/how_do_i", "data/docs/commands", "data/docs/upstream"),
        "notebooks/README",
    ],
    "Add to it": ["data/docs/plugins/README"],
    "Understand it": ["workbench/README", "data/README"],
    "Look it up": [
        *("build/reference/commands", "build/reference/api", "build/reference/playbooks"),
    ],
    "What benchmarks recorded": [
        f"tests/benchmarks/records/{name}"
        for name in ("issues", "zoo", "sme2_adviser", "attribution")
    ],
}
#: Each plug-in has a page, which may be deleted with it.
PLUGIN_PAGES = sorted(
    path.stem for path in ROOT.glob("data/docs/plugins/*.md") if path.stem != "README"
)
listed = {page for pages in CONTENTS.values() for page in pages}
texts = sorted(path.relative_to(ROOT) for path in (*ROOT.glob("*.md"), *ROOT.glob("data/*.md")))
pages = [str(path.with_suffix("")) for path in texts]
CONTENTS["Project"] = [page for page in pages if page not in {root_doc, *listed}]

# Browsers refuse to fetch local files, from which Sphinx takes the excerpts of its search.
EXCERPTS = """const texts = TEXTS, load = window.fetch;
window.fetch = (url, ...options) => {
  const text = texts[String(url).replace(/^[.][/]/, "").replace(/[.]html$/, "")];
  const page = new Response(`<div role="main">${text}</div>`);
  return text ? Promise.resolve(page) : load(url, ...options);
};
"""
LONGEST_TEXT = 40_000


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
            kind = "function" if callable(thing) else "data"
            kind = "class" if inspect.isclass(thing) else kind
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
    folders = ROOT / "workbench" / "skills", ROOT / "workbench" / "plugins"
    skills = [path for folder in folders for path in sorted(folder.glob("*/SKILL.md"))]
    paths = (f"   /{skill.relative_to(ROOT).with_suffix('')}" for skill in skills)
    write(
        *("playbooks", "Playbooks"),
        "A playbook has commands that run as they are, the files that they write, a check, and",
        "what to do on failure.\n",
        *(*tree, *paths),
    )


def complete(app, docname: str, source: list[str]) -> None:
    """Add a table of contents to the pages that lead to others; the text of most names them."""
    notebooks = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))
    contents = {
        root_doc: CONTENTS,
        "notebooks/README": {"Notebooks": notebooks},
        "data/docs/plugins/README": {"Plug-ins": PLUGIN_PAGES},
    }
    for title, pages in contents.get(docname, {}).items():
        hidden = "" if pages is PLUGIN_PAGES else ":hidden:\n"
        options = f"{hidden}:caption: {title}"
        paths = [page if docname != root_doc else f"/{page}" for page in pages]
        source[0] += "\n\n```{toctree}\n" + "\n".join([options, "", *paths, "```"])


def finish(app, problem: Exception | None) -> None:
    """Lead to the first page from where browsers expect it; write what the search quotes."""
    if problem is not None or app.builder.name != "html":
        return
    refresh = f'<meta http-equiv="refresh" content="0; url={root_doc}.html">'
    link = f'<a href="{root_doc}.html">{project}</a>'
    page = f"<!doctype html><meta charset='utf-8'><title>{project}</title>{refresh}{link}"
    (Path(app.outdir) / "index.html").write_text(page)
    texts = {
        name: html.escape(" ".join(map(str, _texts(app.env.get_doctree(name)))))[:LONGEST_TEXT]
        for name in app.env.found_docs
    }
    script = EXCERPTS.replace("TEXTS", json.dumps(texts))
    (Path(app.outdir) / "_static" / "excerpts.js").write_text(script)


def _texts(document) -> Iterator[str]:
    """The texts of a page, without pages that are embedded in it."""
    from docutils import nodes  # tests read this file without it

    return (node for node in document.findall(nodes.Text) if not isinstance(node.parent, nodes.raw))


def add_excerpts(app, page: str, *_: object) -> None:
    """The search alone needs the texts of all pages."""
    if page == "search":
        app.add_js_file("excerpts.js")


def setup(app) -> None:
    """Called by Sphinx."""
    write_reference()
    app.connect("source-read", complete)
    app.connect("build-finished", finish)
    app.connect("html-page-context", add_excerpts)
