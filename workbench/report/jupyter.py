"""An extension of Jupyter's server, which makes the pages that JupyterLab shows of our files."""

import asyncio
import contextlib
import json
import operator
import os
from collections.abc import Iterable, Iterator
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
from workbench.export.program import Program, open_program
from workbench.plots.tables import show_note, show_table
from workbench.records.layers import Layers, Value, XNode, XValue
from workbench.report.html import Section, render_html
from workbench.report.report import make_report
from workbench.store import MANIFEST, read_file

#: Operators and parts of a program that its page lists.
TOP = 2000
LONGEST_BODY = 2**16  #: Bytes of a request: two paths.


class PageHandler(APIHandler):
    """Answers ``{"path": FILE}`` with ``{"page": HTML}``, or an error as ``{"message": LINE}``.

    The answer is JSON: no browser shows it as a page of this server.
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
            self.finish(json.dumps({"page": page}))


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
    if path.name != MANIFEST and path.suffix not in (ETDUMP, ".pte", ".etrecord"):
        raise UsageError("is no trace, program, ETRecord or manifest of a run", where=name)
    if not os.path.isfile(path):  # noqa: PTH113 - a name too long is no error here
        raise StoreError("no such file", where=name)
    if path.stat().st_size > LARGEST_BYTES:
        raise StoreError(f"is larger than {LARGEST_BYTES / 2**30:.0f} GB", where=name)
    return path


def make_page(view: str, path: Path, *others: Path) -> str:
    """The report of a run, its comparison with another one, or what a file contains."""
    if path.suffix == ".pte":
        return program_page(open_program(path))
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


def program_page(program: Program) -> str:
    """What a program consists of: its operators, in delegates or outside, and the file's parts."""
    sections = [Section("", items=[program])]
    if layers := program.layers:
        sections.append(list_rows("Operators", list_operators(layers)))
        sections.append(list_rows("File", tabulate_file(layers)))
    else:
        sections[0].items.append(show_note("Only the runtime can read its operators."))
    return render_html(program.path.name, sections)


def list_rows(heading: str, rows: Iterable[dict[str, Any]]) -> Section:
    """A table of a page, of the columns that are known: layers, if the program came with them."""
    frame = pd.DataFrame(rows)
    frame = frame.loc[:, frame.ne("").any()]
    note = f"The first {TOP} of {len(frame)}." if len(frame) > TOP else ""
    return Section(heading, note, [show_table(frame, top=TOP)])


def list_operators(layers: Layers) -> Iterator[dict[str, Any]]:
    """A row for each operator in the order of execution; those of a delegate are named after it."""
    for method in layers.methods:
        for number, call in enumerate(method.instructions):
            place = {"method": method.name, "instruction": number}
            place["delegate"] = call.name if call.kind == "delegate" else ""
            inside: dict[int, Any] = {value.id: value for value in call.xvalues}
            for each in call.xnodes or (call,):
                node = each if isinstance(each, XNode) else None
                name = node.type if node else call.name or call.kind
                tensors, origins = (
                    (inside, node.origins) if node else (method.values, [call.origin])
                )
                output = next((tensors[n] for n in each.outputs if n in tensors), None)
                origin = next((method.origins[n] for n in origins if n is not None), None)
                yield {
                    **place,
                    "operator": name,
                    "output": _describe(output),
                    "operations": each.flops,
                    "layer": origin.module if origin else "",
                    "source": origin.source if origin else "",
                }


def _describe(tensor: Value | XValue | None) -> str:
    return f"{tensor.dtype} {'x'.join(map(str, tensor.shape))}" if tensor else ""


def tabulate_file(layers: Layers) -> Iterator[dict[str, Any]]:
    """A row for each part of the program's file, with the instruction that uses it first."""
    for part in layers.file:
        method = layers.methods[part.method].name if part.method is not None else ""
        yield {
            "part": part.kind,
            "method": method,
            "instruction": "" if part.instruction is None else str(part.instruction),
            "bytes": part.size_bytes,
        }


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": __name__}]


def _load_jupyter_server_extension(app: Any) -> None:
    base = app.web_app.settings["base_url"]
    pattern = url_path_join(base, "executorch-workbench", "(explorer|report|compare)")
    app.web_app.add_handlers(".*$", [(pattern, PageHandler)])
