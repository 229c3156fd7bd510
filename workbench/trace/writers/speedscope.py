"""Mean times as a flame graph for speedscope."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from workbench.store import atomic_write


def write_speedscope(
    profiles: Mapping[str, pd.DataFrame], path: Path, *, stack: Sequence[str], weight: str
) -> Path:
    """Write flame graphs in speedscope's file format, one profile for each frame.

    The format has no negative times. A row that has one, such as the overhead of a delegate below
    the rounding of its operators, counts as 0; all others are shortened so that the total stays.
    """
    frames: dict[tuple[str, str], int] = {}
    written = []
    for name, table in profiles.items():
        samples = [
            [frames.setdefault(frame, len(frames)) for frame in zip(stack, row, strict=True)]
            for row in table[list(stack)].astype(str).itertuples(index=False)
        ]
        weights = table[weight].to_numpy(float)
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
        "shared": {"frames": [{"name": text} for _, text in frames]},
        "profiles": written,
    }
    return atomic_write(path, json.dumps(content, allow_nan=False, separators=(",", ":")))
