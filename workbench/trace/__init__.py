"""ETDump files to frames, and frames to files of other formats."""

from workbench.trace.etdump import read_etdump
from workbench.trace.tables import write_csvs

__all__ = ["read_etdump", "write_csvs"]
