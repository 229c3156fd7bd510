"""Pages of the documentation whose sections benchmarks write."""

import re


def read_sections(page):
    """The text of each section by its title; what comes before them has none; of no page, none."""
    text = page.read_text() if page.is_file() else ""
    head, *parts = re.split(r"^## (.+)\n\n", text, flags=re.MULTILINE)
    return {"": head.strip()} | {
        title: text.strip() for title, text in zip(parts[::2], parts[1::2], strict=True)
    }


def write_section(page, title, text):
    """Replace a section, or add one at the end."""
    sections = read_sections(page) | {title: text.strip()}
    parts = [f"## {name}\n\n{part}" if name else part for name, part in sections.items()]
    page.write_text("\n\n".join(parts) + "\n")
