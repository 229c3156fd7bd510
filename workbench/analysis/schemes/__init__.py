"""Schemes of categories, each a YAML file of rules."""

from pathlib import Path

from workbench.errors import UsageError

BUILT_IN = ("workbench", "kit")


def locate_scheme(categories: str | Path) -> Path:
    """The file of a scheme: one of `BUILT_IN`, or a user's."""
    path = Path(categories)
    if str(path) in BUILT_IN:
        return Path(__file__).with_name(f"{path}.yaml")
    if path.suffix not in (".yaml", ".yml"):
        hint = f"name a .yaml file of rules, or {' or '.join(BUILT_IN)}"
        raise UsageError(f"unknown categories {str(path)!r:.60}", hint=hint)
    return path
