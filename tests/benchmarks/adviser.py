"""What does the SME2 adviser say of ten networks and a language model in each dtype?

Exports them with random weights, and writes the page ``records/sme2_adviser.md``, which keeps
what it has of other models and dtypes.

    python tests/benchmarks/adviser.py [--keep FOLDER] [--dtypes 8da4w,8da4c,int8] [MODEL...]
"""

import argparse
import re
import sys
import tempfile
from pathlib import Path

import workbench as wb
from workbench.errors import WorkbenchError
from workbench.plugins.sme2.predict import ONE_ROW, predict_program
from workbench.wording import format_share

PAGE = Path(__file__).parent / "records" / "sme2_adviser.md"
MODELS = (
    "toy_cnn", "mobilenet_v3_small", "squeezesam", "unet_small", "vit_tiny",
    "timm:resnet18", "timm:lcnet_050", "timm:mixer_s32_224", "timm:deit_tiny_patch16_224",
    "timm:mobilevit_xxs", "llm:smollm2_135m",
)  # fmt: skip
DTYPES = "8da4w,8da4c,int8"
#: The page's table stands between these lines.
BEGIN, END = "<!-- table -->", "<!-- end -->"
HEAD = (
    "| network | dtype and SQNR | several rows | one row | none | portable | "
    "why none: 1 % or more |",
    "|---|---|---:|---:|---:|---:|---|",
)


def describe(name, table):
    """A row of the page, of one program."""
    products = table[table["m"].notna()]
    on, one = products["kernel_on"].str.startswith("sme2"), products["reason"] == ONE_ROW
    work = products["flops"] / products["flops"].sum()
    reasons = products[~on & ~one].assign(work=work).groupby("reason")["work"].sum()
    cells = [
        *name.split(", ", 1), format_share(work[on & ~one].sum()), format_share(work[one].sum()),
        format_share(work[~on].sum()), str((table["kernel_on"] == "portable").sum()),
        ", ".join(reasons[reasons > 0.01].index) or "-",
    ]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def find_key(line):
    """The network, dtype and phase that a line of the page is about."""
    cells = line.split("|")[1:3] or [line.partition(":")[0]]
    return tuple(re.sub(r", SQNR [^,]*", "", cell).strip() for cell in cells)


def main():
    """Export, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--dtypes", default=DTYPES)
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    folder = options.keep or Path(tempfile.mkdtemp())
    head, _, rest = PAGE.read_text().partition(BEGIN)
    known, _, rest = rest.partition(END)
    rows = {find_key(line): line for line in known.splitlines() if line.startswith(("| ", "- "))}
    rows.pop(find_key(HEAD[0]))
    for model in options.models:
        for dtype in options.dtypes.split(","):
            try:
                export = wb.ExportOptions(dtype)
                root = folder / model.replace(":", "_")
                tables = predict_program(wb.export_model(model, options=export, root=root))
            except WorkbenchError as error:
                lines = [f"- {model}, {dtype}: {error.what}."]
            else:
                lines = [describe(name, table) for name, table in tables.items()]
            rows |= {find_key(line): line for line in lines}
            print(*lines, sep="\n", flush=True)
    refused = [line for line in rows.values() if line.startswith("- ")]
    lines = [*HEAD, *(line for line in rows.values() if line not in refused)]
    lines += ["", "Not exported:", "", *refused] if refused else []
    PAGE.write_text(head + "\n".join([BEGIN, "", *lines, "", END]) + rest)
    return 0


if __name__ == "__main__":
    sys.exit(main())
