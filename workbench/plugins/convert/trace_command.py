"""The command ``workbench trace``."""

from pathlib import Path

import click

from workbench.api import Output, command
from workbench.jobs import EXISTING


@command("trace")
@click.argument("etdump", type=EXISTING)
@click.option("--to", required=True, help="csv or perfetto.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="The file, or for csv the folder [default: beside ETDUMP].",
)
@click.option("--baseline", type=EXISTING, help="A second ETDump to compare with.")
def convert_trace(etdump: Path, to: str, out: Path | None, baseline: Path | None) -> Output:
    """Convert an ETDump to another format; prints the files."""
    from workbench.plugins.convert.traces import VIEWERS, export_trace

    files = export_trace(etdump, to, out=out, baseline=baseline)
    return Output(files, {"files": files}, step=f"open the file in {VIEWERS[to]}")
