"""The mark of what was measured under emulation, where times say nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

#: What every figure, table and sentence about emulated times says.
EMULATED = "emulated: which code runs, not how fast"


def mark_emulated(frame: pd.DataFrame) -> pd.DataFrame:
    """Mark a frame as measured under emulation; what is selected from it is marked too."""
    frame.attrs["emulated"] = True
    return frame


def is_emulated(frame: pd.DataFrame) -> bool:
    """Whether a frame was measured under emulation."""
    return bool(frame.attrs.get("emulated"))
