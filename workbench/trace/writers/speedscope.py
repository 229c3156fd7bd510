"""Mean times as a flame graph for speedscope."""

import json
import math
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from workbench.store import atomic_write


def write_speedscope(profiles: Mapping[str, pd.DataFrame], path: Path) -> Path:
    """Write flame graphs in speedscope's file format, one profile for each frame.

    A frame has the columns ``stack`` (names, outermost first), ``ns``, and perhaps ``source``: the
    source line of the innermost, ``file:line``. The format has no negative times. A row that has
    one, such as the overhead of a delegate below the rounding of its operators, counts as 0; all
    others are shortened so that the total stays.
    """
    frames: dict[tuple[int, str, str], int] = {}
    written = []
    for name, table in profiles.items():
        samples = []
        sources = table.get("source", pd.Series("", table.index)).fillna("")
        for stack, source in zip(table["stack"], sources, strict=True):
            levels = [(level, text, "") for level, text in enumerate(stack)]
            levels[-1] = (*levels[-1][:2], source)
            samples.append([frames.setdefault(frame, len(frames)) for frame in levels])
        weights = table["ns"].to_numpy(float)
        if (weights < 0).any():
            positive = weights.clip(0)
            weights = positive * (math.fsum(weights) / math.fsum(positive))
        sizes = {"startValue": 0, "endValue": math.fsum(weights)}
        profile = {"type": "sampled", "name": name, "unit": "nanoseconds", **sizes}
        written.append({**profile, "samples": samples, "weights": weights.tolist()})
    content = {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": "executorch-workbench",
        "name": path.name,
        "activeProfileIndex": 0,
        "shared": {"frames": [{"name": text, **_place(source)} for _, text, source in frames]},
        "profiles": written,
    }
    return atomic_write(path, json.dumps(content, allow_nan=False, separators=(",", ":")))


def _place(source: str) -> dict[str, str | int]:
    file, _, line = source.rpartition(":")
    return {"file": file, "line": int(line)} if file and line.isdecimal() else {}
