"""Parameters of notebooks: papermill only logs a warning of one that a notebook lacks."""

import ast
import sys
from itertools import pairwise

from workbench.errors import unknown_name

#: What every notebook of the workbench has, and how papermill begins the cell that it adds.
RUN_DIR, ADDED = "run_dir", "# Parameters\n"


def assigned_names(source: str) -> set[str]:
    """The names that code assigns."""
    names = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name))
    return {name.id for name in names if isinstance(name.ctx, ast.Store)}


def check_parameters() -> None:
    """Refuse a parameter that papermill has given, and the cell above does not have.

    Called when a notebook imports the workbench, which is the first thing that it does.
    """
    ipython = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    cells = ipython.user_ns.get("In", []) if ipython else []
    for above, added in pairwise(cells):
        if added.startswith(ADDED) and RUN_DIR in (names := assigned_names(above)):
            for name in sorted(assigned_names(added) - names):
                raise unknown_name("parameter", name, names)
