"""Marks of frames whose times say nothing: emulated, or of wrong outputs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import pandas as pd

#: The outcome of every comparison of a program whose outputs are wrong.
WRONG = "wrong outputs"

F = TypeVar("F", "pd.DataFrame", "pd.DataFrame | None")

#: What every figure, table and sentence about emulated times says.
EMULATED = "emulated: which code runs, not how fast"


def mark_emulated(frame: pd.DataFrame) -> pd.DataFrame:
    """Mark a frame as measured under emulation; what is selected from it is marked too."""
    frame.attrs["emulated"] = True
    return frame


def is_emulated(frame: pd.DataFrame) -> bool:
    """Whether a frame was measured under emulation."""
    return bool(frame.attrs.get("emulated"))


def mark_frame(owner: Any, frame: Any) -> Any:
    """A frame of a noun without outcomes that are none, and marked if its times are emulated.

    What is no frame stays as it is.
    """
    import pandas as pd

    if not isinstance(frame, pd.DataFrame):
        return frame
    if "outcome" in frame and (owner.emulated or owner.wrong):
        frame = frame.assign(outcome="emulated" if owner.emulated else WRONG)
    return mark_emulated(frame.copy(deep=False)) if owner.emulated else frame


def frame_property(compute: Callable[[Any], F]) -> cached_property[F]:
    """A frame that is computed once; wrong outputs and emulated times are no outcome."""

    @wraps(compute)
    def marked(owner: Any) -> F:
        return mark_frame(owner, compute(owner))

    return cached_property(marked)
