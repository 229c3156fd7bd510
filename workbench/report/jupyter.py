"""An extension of Jupyter's server, which makes the pages that JupyterLab shows of our files."""

import asyncio
import contextlib
import json
import operator
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pandas as pd
from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from jupyter_server.utils import url_path_join
from tornado import web

from workbench.analysis.compare_runs import compare
from workbench.analysis.foreign import ETDUMP, LARGEST_BYTES
from workbench.analysis.open import open_run
from workbench.errors import StoreError, UsageError, WorkbenchError
from workbench.explorer.page import explorer_page
from workbench.export.etrecord import read_etrecord
from workbench.export.program import open_program
from workbench.models.registry import list_classes
from workbench.plots.map import map_exported, map_source
from workbench.plots.tables import show_table
from workbench.plots.views import show
from workbench.report.html import Section, render_html
from workbench.report.report import make_report
from workbench.store import MANIFEST, read_file

#: Operators that a page lists.
TOP = 2000
LONGEST_BODY = 2**16  #: Bytes of a request: two paths.


class PageHandler(APIHandler):
    """Answers ``{"path": FILE}`` with ``{"page": HTML}``, or an error as ``{"message": LINE}``.

    With the page comes the ``code`` of a cell that measures the file. The answer is JSON: no
    browser shows it as a page of this server.
    """

    auth_resource = "contents"

    @web.authenticated
    @authorized
    async def post(self, view: str) -> None:
        """Make the page of a file below the server's root."""
        paths: list[Path] = []
        root = Path(self.settings["server_root_dir"]).expanduser().resolve()
        try:
            asked = read_question(self.request.body)
            names = [asked.get("path"), *([asked.get("other")] if view == "compare" else [])]
            paths = [locate(root, name) for name in names]
            # In a thread: the server answers others meanwhile.
            page = await asyncio.to_thread(make_page, view, *paths)
        except WorkbenchError as error:
            # Other programs call their files manifest.json, too.
            is_manifest = bool(paths) and paths[0].name == MANIFEST
            foreign = is_manifest and b'"plan"' not in read_file(paths[0])
            self.set_status(400)
            self.finish(json.dumps({"message": str(error), "foreign": foreign}))
        else:
            self.finish(json.dumps({"page": page, "code": write_code(paths[0])}))


def read_question(body: bytes) -> dict[str, object]:
    """The fields of a request; UsageError for a body without any, or much longer than a path."""
    if len(body) <= LONGEST_BODY:
        with contextlib.suppress(ValueError, RecursionError):
            if isinstance(asked := json.loads(body), dict):
                return asked
    raise UsageError("asks for no file", hint='send {"path": FILE} as JSON')


def locate(root: Path, name: object) -> Path:
    """The file of that name below a folder; UsageError for another place or kind of file."""
    # Links are resolved before the file is looked for: nothing outside is said to exist.
    path = (root / str(name).lstrip("/")).resolve() if "\0" not in str(name) else root.parent
    if not path.is_relative_to(root):
        raise UsageError("is outside of the folder that Jupyter serves", where=name)
    if path.name != MANIFEST and path.suffix not in (ETDUMP, ".etrecord", *MAPS):
        what = "is no trace, program, ETRecord, Python file or manifest of a run"
        raise UsageError(what, where=name)
    if not os.path.isfile(path):  # noqa: PTH113 - a name too long is no error here
        raise StoreError("no such file", where=name)
    if path.stat().st_size > LARGEST_BYTES:
        raise StoreError(f"is larger than {LARGEST_BYTES / 2**30:.0f} GB", where=name)
    return path


def _map_program(path: Path) -> list[Any]:
    return [show(open_program(path), "map")]


#: What draws the map of a file that was not run.
MAPS: dict[str, Callable[[Path], list[Any]]] = {
    ".pte": _map_program, ".pt2": map_exported, ".py": map_source,
}  # fmt: skip


def write_code(path: Path) -> str:
    """The line that measures a file from a notebook beside it; empty for what was measured."""
    if path.suffix not in MAPS:
        return ""
    name = path.name
    if path.suffix == ".py":
        classes = list_classes(path, "forward") or list_classes(path, "get_eager_model")
        if not classes:
            return ""
        name = f"{name}:{classes[-1][1]}"
    return f"run = wb.profile({name!r})\nrun"


def make_page(view: str, path: Path, *others: Path) -> str:
    """The report of a run, its comparison with another one, or what a file contains."""
    if path.suffix in MAPS:
        return render_html(path.name, [Section("", items=MAPS[path.suffix](path))])
    if path.suffix == ".etrecord":
        heads = ("operator", "layer", "class", "source")
        fields = operator.attrgetter("operator", "module", "module_class", "source")
        sections = [
            list_rows(f"Method {name}", (dict(zip(heads, fields(o), strict=True)) for o in origins))
            for name, origins in read_etrecord(path).items()
        ]
        return render_html(path.name, sections)
    source, *before = (each.parent if each.name == MANIFEST else each for each in (path, *others))
    if view == "report":
        return make_report(source)[0].read_text()
    run = open_run(source)
    if before:  # another device is another question, which the command line answers
        return explorer_page(compare(open_run(before[0]), run, across=("program", "build")))
    return explorer_page(run)


def list_rows(heading: str, rows: Iterable[dict[str, Any]]) -> Section:
    """A table of a page, of the columns that are known: layers, if the program came with them."""
    frame = pd.DataFrame(rows)
    frame = frame.loc[:, frame.ne("").any()]
    note = f"The first {TOP} of {len(frame)}." if len(frame) > TOP else ""
    return Section(heading, note, [show_table(frame, top=TOP)])


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": __name__}]


def _load_jupyter_server_extension(app: Any) -> None:
    base = app.web_app.settings["base_url"]
    pattern = url_path_join(base, "executorch-workbench", "(explorer|report|compare)")
    app.web_app.add_handlers(".*$", [(pattern, PageHandler)])
