"""The frames of advice, beside those of ``schema``: findings."""

from workbench.schema import Column, Frame

_COLUMNS = (
    ("rank", "int", "", "1 comes first"),
    ("rule", "text", "", "which rule found it"),
    ("title", "text", "", "what was seen"),
    ("gain_ms", "float", "ms/run", "what E2E would be shorter by; NaN: only bounds are known"),
    ("low_ms", "float", "ms/run", "lower end of the gain"),
    ("high_ms", "float", "ms/run", "upper end of the gain"),
    ("share", "float", "", "gain, or its upper bound, as a part of E2E"),
    ("basis", "text", "", "measured | estimated | bound"),
    ("action", "text", "", "what to do"),
    ("hint", "text", "", "the same as code"),
    ("keys", "text", "", "rows of the operators frame that show it, one per line"),
    ("notebook", "text", "", "where to look at them"),
    ("heading", "text", "", "under which heading"),
)

FINDINGS = Frame("findings", tuple(Column(*column) for column in _COLUMNS))
