"""An extension of Jupyter's server, which makes the pages that JupyterLab shows of our files."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from jupyter_server.utils import url_path_join
from tornado import web

from workbench.analysis.foreign import ETDUMP, LARGEST_BYTES
from workbench.analysis.open import open_run
from workbench.errors import StoreError, UsageError, WorkbenchError
from workbench.explorer.page import explorer_page
from workbench.export.program import Program, open_program
from workbench.plots.tables import show_note, show_table
from workbench.records.layers import Layers, Value, XNode, XValue
from workbench.report.html import Section, render_html
from workbench.report.report import make_report
from workbench.store import MANIFEST

#: Operators and parts of a program that its page lists.
TOP = 2000


class PageHandler(APIHandler):
    """Answers ``{"path": FILE}`` with ``{"page": HTML}``, or an error as ``{"message": LINE}``.

    The answer is JSON: no browser shows it as a page of this server.
    """

    auth_resource = "contents"

    @web.authenticated
    @authorized
    async def post(self, view: str) -> None:
        """Make the page of a file below the server's root."""
        root = Path(self.settings["server_root_dir"]).expanduser().resolve()
        try:
            path = locate(root, (self.get_json_body() or {}).get("path"))
            # In a thread: the server answers others meanwhile.
            page = await asyncio.to_thread(make_page, path, view)
        except WorkbenchError as error:
            self.set_status(400)
            self.finish(json.dumps({"message": str(error)}))
        else:
            self.finish(json.dumps({"page": page}))


def locate(root: Path, name: object) -> Path:
    """The file of that name below a folder; UsageError for another place or kind of file."""
    # Links are resolved before the file is looked for: nothing outside is said to exist.
    path = (root / str(name).lstrip("/")).resolve() if "\0" not in str(name) else root.parent
    if not path.is_relative_to(root):
        raise UsageError("is outside of the folder that Jupyter serves", where=name)
    if path.name != MANIFEST and path.suffix not in (ETDUMP, ".pte"):
        raise UsageError("is no trace, program or manifest of a run", where=name)
    if not path.is_file():
        raise StoreError("no such file", where=name)
    if path.stat().st_size > LARGEST_BYTES:
        raise StoreError(f"is larger than {LARGEST_BYTES / 2**30:.0f} GB", where=name)
    return path


def make_page(path: Path, view: str) -> str:
    """The report of a run, or the explorer of a run, a trace or a program."""
    if path.suffix == ".pte":
        return program_page(open_program(path))
    source = path.parent if path.name == MANIFEST else path
    if view == "report":
        return make_report(source)[0].read_text()
    return explorer_page(open_run(source))


def program_page(program: Program) -> str:
    """What a program consists of: its operators, in delegates or outside, and the file's parts."""
    sections = [Section("", items=[program])]
    if layers := program.layers:
        for heading, rows in (("Operators", list_operators(layers)), ("File", list_parts(layers))):
            frame = pd.DataFrame(rows)
            frame = frame.loc[:, frame.ne("").any()]  # layers only if the program came with them
            note = f"The first {TOP} of {len(frame)}." if len(frame) > TOP else ""
            sections.append(Section(heading, note, [show_table(frame, top=TOP)]))
    else:
        sections[0].items.append(show_note("Only the runtime can read its operators."))
    return render_html(program.path.name, sections)


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


def list_parts(layers: Layers) -> Iterator[dict[str, Any]]:
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
    pattern = url_path_join(base, "executorch-workbench", "(explorer|report)")
    app.web_app.add_handlers(".*$", [(pattern, PageHandler)])
