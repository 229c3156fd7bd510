"""The page of remedies is their table: ``python tests/plugins/remedies/test_page.py``."""

from pathlib import Path

from workbench.remedies import REMEDIES

PAGE = Path(__file__).parents[3] / "data" / "docs" / "plugins" / "remedies.md"
_TEXT = """# Remedies

The plug-in looks for remedies in every program, applies and tries them. Without it, findings name
what takes the time, where and why, and propose what the graph shows alone.

What makes a program faster or right, and is not what ExecuTorch's documented lines export.
`workbench profile` names a remedy in a finding and tries the best of them on the part of a program
that they change, `workbench findings RUN --check` tries more, and `--rewrite NAME[,NAME]` applies
them. A part is recognised by what it computes: it is run on random tensors beside its replacement.
*same* means within rounding.
"""


def describe_remedies():
    """The page of remedies, from their table."""
    lines = [_TEXT, "| `--rewrite` | what it does | by hand | outputs | in `all` |"]
    lines.append("| --- | --- | --- | --- | --- |")
    for name, remedy in REMEDIES.items():
        code = "<br>".join(f"`{line}`" for line in remedy.code.replace("|", "\\|").splitlines())
        until = f"; a fault of ExecuTorch before {remedy.until}" * bool(remedy.until)
        common = "yes" * remedy.common
        text = (
            f"| `{name}` | {remedy.text}{until} | {code} | {remedy.differs or 'same'} | {common} |"
        )
        lines.append(text)
    return "\n".join(lines) + "\n"


def test_the_page_of_remedies_is_the_table():
    assert PAGE.read_text() == describe_remedies(), "python tests/plugins/remedies/test_page.py"


if __name__ == "__main__":
    PAGE.write_text(describe_remedies())
