"""Cells as VS Code runs them: in a plain kernel in the notebook's folder, with names of its own."""

import re

import pytest
from jupyter_client.manager import KernelManager

SETUP = [
    "import torch\nfrom torch import nn\nimport workbench as wb\nx = torch.ones(1, 64)\n"
    "brief = {'effort': 'quick', 'export': wb.ExportOptions(backend='portable'),"
    " 'measure': wb.MeasureOptions(toggle='none', runs=4, processes=2)}",
    "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    "        self.hidden = nn.Linear(64, 2048)\n\n    def forward(self, x):\n"
    "        return self.hidden(x).relu()",
]


@pytest.fixture
def run_cell(tmp_path):
    """Runs a cell; returns what it displays at the end, and everything that the kernel sent."""
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(cwd=str(tmp_path))
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=60)

    def run(code, hidden=False):
        sent, shown = [], {}
        client.execute_interactive(
            code, silent=hidden, store_history=not hidden, allow_stdin=not hidden,
            output_hook=sent.append, timeout=200,
        )  # fmt: skip
        for number, message in enumerate(sent):
            content = message["content"]
            if message["msg_type"] in ("stream", "error", "display_data", "execute_result"):
                key = content.get("transient", {}).get("display_id", number)
                shown[key] = content
            elif message["msg_type"] == "update_display_data":
                shown[content["transient"]["display_id"]] = content
        return list(shown.values()), [m["content"] for m in sent]

    run("import os as _VSCODE_os\n%config Completer.use_jedi = False", hidden=True)
    run(f"__vsc_ipynb_file__ = {str(tmp_path / 'mine.ipynb')!r}", hidden=True)
    yield run
    client.stop_channels()
    manager.shutdown_kernel(now=True)


@pytest.mark.cases
def test_a_class_in_a_cell_is_profiled_edited_and_compared(run_cell, tmp_path):
    for code in SETUP:
        assert run_cell(code)[0] == []
    shown, sent = run_cell("before = wb.profile(Net(), x, **brief)\nbefore")
    bar, result = shown
    assert any("widget-view" in str(content.get("data")) for content in sent), "a bar is shown"
    assert bar["data"] == {"text/html": ""}, "and nothing of it is saved"
    assert {"text/plain", "text/html"} <= result["data"].keys()
    (shown,), _ = run_cell("sorted({*before.operators['source'].dropna()}), before.path.is_dir()")
    assert shown["data"]["text/plain"] == "(['In [2]:7'], True)"
    run_cell(SETUP[1].replace("2048", "64"))
    run_cell("after = wb.profile(Net(), x, **brief)")
    (shown,), _ = run_cell("wb.compare(before, after)")
    assert re.search(r"against Net \(before\): \d+\.\d+x faster", str(shown["data"]))
    assert len(list((tmp_path / "out_Net" / "runs").iterdir())) == 2, "beside the notebook"
    (shown,), _ = run_cell("wb.open_run('out_Net/runs/' + before.path.name).model")
    assert shown["data"]["text/plain"] == "'Net'"


@pytest.mark.whole
def test_an_error_is_one_line(run_cell):
    (shown,), _ = run_cell("import workbench as wb\nwb.open_run('nowhere')")
    line, hint = shown["traceback"]
    assert line == "UsageError: nowhere: no such file or folder" and hint.startswith("(%tb")
