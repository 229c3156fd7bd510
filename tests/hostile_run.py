"""A recorded run in which every name that a stranger may choose is code."""

import json
import shutil
from pathlib import Path

import workbench as wb

CODE = "document.title='ran'"
LINK = f"javascript:{CODE}"
EVIL = (
    f'=1+1</script><script>{CODE}</script><img src=x onerror="{CODE}">\'"><svg onload={CODE}>'
    f"[a]({LINK})<!--\u202e\x1b[31m\U0001f4a3\ufffd"
)


def make_hostile(folder: Path) -> Path:
    """A copy of a recorded run with such names."""
    shutil.copytree(wb.sample_run(), folder)
    text = (folder / "layers.json").read_text()
    for name in ("features", "classifier", "mobilenet_v3_small.py"):
        assert name in text
        text = text.replace(name, json.dumps(name + EVIL)[1:-1])
    (folder / "layers.json").write_text(text)
    content = json.loads((folder / "manifest.json").read_text())
    content["plan"]["model"] = content["host"]["cpu"] = EVIL
    content["export"]["model"] = content["export"]["source"] = LINK
    (folder / "manifest.json").write_text(json.dumps(content))
    return folder
