"""What an examination of this machine finds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One thing looked at: ``status`` is ``ok``, ``note`` (works with less) or ``fail``."""

    subject: str
    status: str
    detail: str
    fix: str = ""
