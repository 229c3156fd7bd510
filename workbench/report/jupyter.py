"""An extension of Jupyter's server, which makes the pages that JupyterLab shows of our files."""

import asyncio
import contextlib
import json
import os
import threading
from importlib import import_module
from pathlib import Path
from typing import Any

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from jupyter_server.utils import url_path_join
from tornado import web

from workbench.errors import StoreError, UsageError, WorkbenchError
from workbench.store import MANIFEST, read_file

#: What makes the pages; it imports for a second, which the server's start does not wait for.
PAGES = "workbench.report.opened"
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
            # In a thread: the server answers others meanwhile.
            pages = await asyncio.to_thread(import_module, PAGES)
            paths = [locate(root, name) for name in names]
            page = await asyncio.to_thread(pages.make_page, view, *paths)
        except WorkbenchError as error:
            # Other programs call their files manifest.json, too.
            is_manifest = bool(paths) and paths[0].name == MANIFEST
            foreign = is_manifest and b'"plan"' not in read_file(paths[0])
            self.set_status(400)
            self.finish(json.dumps({"message": str(error), "foreign": foreign}))
        else:
            self.finish(json.dumps({"page": page, "code": pages.write_code(paths[0])}))


def read_question(body: bytes) -> dict[str, object]:
    """The fields of a request; UsageError for a body without any, or much longer than a path."""
    if len(body) <= LONGEST_BODY:
        with contextlib.suppress(ValueError, RecursionError):
            if isinstance(question := json.loads(body), dict):
                return question
    raise UsageError("asks for no file", hint='send {"path": FILE} as JSON')


def locate(root: Path, name: object) -> Path:
    """The file of that name below a folder; UsageError for another place or kind of file."""
    from workbench.analysis.foreign import LARGEST_BYTES
    from workbench.report.opened import MAPS
    from workbench.trace.files import ETDUMP

    # Links are resolved before the file is looked for: nothing outside is said to exist.
    path = (root / str(name).lstrip("/")).resolve() if "\0" not in str(name) else root.parent
    if not path.is_relative_to(root):
        raise UsageError("is outside of the folder that Jupyter serves", where=name)
    if path.name != MANIFEST and path.suffix not in (ETDUMP, *MAPS):
        what = "is no trace, program, Python file or manifest of a run"
        raise UsageError(what, where=name)
    if not os.path.isfile(path):  # noqa: PTH113 - a name too long is no error here
        raise StoreError("no such file", where=name)
    if path.stat().st_size > LARGEST_BYTES:
        raise StoreError(f"is larger than {LARGEST_BYTES / 2**30:.0f} GB", where=name)
    return path


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": __name__}]


def _load_jupyter_server_extension(app: Any) -> None:
    base = app.web_app.settings["base_url"]
    pattern = url_path_join(base, "executorch-workbench", "(explorer|report|compare)")
    app.web_app.add_handlers(".*$", [(pattern, PageHandler)])
    threading.Thread(target=import_module, args=(PAGES,), daemon=True).start()
