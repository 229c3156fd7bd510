"""Frames as CSV files."""

import csv
import io
import re

import pandas as pd

from workbench.errors import printable

# A spreadsheet interprets a cell that begins like this as a formula.
_FORMULA = ("=", "+", "-", "@")


def to_csv(table: pd.DataFrame) -> str:
    """A table as CSV, with texts that are one line each and no formula."""
    columns = []
    for name in table:
        values = table[name].astype(object).where(table[name].notna(), "").tolist()
        if not pd.api.types.is_numeric_dtype(table[name]):
            texts = {value: _defuse(value) for value in set(values) if isinstance(value, str)}
            values = [texts.get(value, value) for value in values]
        columns.append(values)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")  # faster than that of pandas
    writer.writerow(table)
    writer.writerows(zip(*columns, strict=True))
    return text.getvalue()


def _defuse(text: str) -> str:
    plain = printable(re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", " ", text)).lstrip()
    return f"'{plain}" if plain.startswith(_FORMULA) else plain
