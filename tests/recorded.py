"""Recorded runs that tests only read, each opened once, and what their reports say."""

import ast
import functools
import json
from pathlib import Path

import workbench as wb
from workbench import plugin

REPORT = Path(__file__).resolve().parents[1] / "notebooks" / "16_report.ipynb"


#: Opens a run once.
open_once = functools.cache(wb.open_run)


def recorded(name="mobilenet_v3_small"):
    """The run of a recorded sample."""
    return open_once(wb.sample_run(name))


def plain(text):
    """Shown text with hyphens for arrows, minus signs and dashes, as sentences are written."""
    text = text.replace("\N{NO-BREAK SPACE}", " ").replace("\N{MINUS SIGN}", "-")
    return text.replace("\N{RIGHTWARDS ARROW}", "->").replace("\N{EN DASH}", "-")


def report_text(run):
    """What the notebook of a report shows of a run, as text; run in this process, as that is fast.

    Sections of plug-ins are last.

    tests/test_report.py runs it in a kernel.
    """
    names, texts = {}, []
    for cell in json.loads(REPORT.read_text())["cells"]:
        if cell["cell_type"] == "code":
            tree = ast.parse("".join(cell["source"]))
            last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, "cell", "exec"), names)
            if last:
                shown = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
                texts.append(str(shown))
            if "parameters" in cell["metadata"].get("tags", []):
                names["run_dir"] = run
    for view, each in plugin.collect("views").items():
        if section := each.section:
            texts += [f"## {section.heading}", section.text, str(wb.show(run, view))]
    return "\n\n".join(texts)


def find_interrupted(folder):
    """The manifest of the only run below a folder: incomplete, with what was measured."""
    (manifest,) = folder.rglob("manifest.json")
    partial = json.loads(manifest.read_text())
    assert partial["state"] == "incomplete"
    assert any(session["batches"] for session in partial["sessions"])
    return manifest
