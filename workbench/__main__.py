"""``python -m workbench``."""

from __future__ import annotations

from workbench.cli import main

main()
