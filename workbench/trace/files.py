"""Where traces are in a folder that somebody recorded; nothing of them is read."""

import os
from collections.abc import Sequence
from pathlib import Path

from workbench.errors import UsageError
from workbench.store import MANIFEST, OUTPUT, RUNS, find_runs

ETDUMP = ".etdump"
#: No more than this is searched: levels of folders, files, and traces.
DEEPEST, MOST_FILES, MOST_TRACES = 6, 20_000, 256


def list_traces(path: Path) -> tuple[list[Path], list[Path]]:
    """The files of a folder, and which of them are the ETDumps of one run; of an ETDump, it alone.

    UsageError if there is none, or if there are several runs.
    """
    files = _list_files(path) if path.is_dir() else [Path(path.name)]
    paths = [p for p in files if p.suffix == ETDUMP and not _is_sampled(p, files)]
    paths = paths if path.is_dir() else files
    _check_paths(path, paths)
    return files, paths


def _is_sampled(trace: Path, files: Sequence[Path]) -> bool:
    """Whether a trace is of a process that was slowed down by sampling."""
    base = trace.name.removesuffix(f"_sampled{ETDUMP}")
    return base != trace.name and trace.with_name(f"{base}.samples") in files


def _list_files(folder: Path) -> list[Path]:
    """The files below a folder, relative to it, without hidden folders and our own output."""
    files: list[Path] = []
    for place, folders, names in os.walk(folder):
        here = Path(place).relative_to(folder)
        deep = len(here.parts) >= DEEPEST
        folders[:] = sorted(
            n for n in folders if not deep and n[0] != "." and not n.endswith(OUTPUT)
        )
        files += [here / name for name in sorted(names)]
        if len(files) > MOST_FILES:
            hint = "name the folder of one run"
            raise UsageError(f"holds over {MOST_FILES} files", where=folder, hint=hint)
    return files


def _check_paths(path: Path, paths: Sequence[Path]) -> None:
    """Refuse what holds no ETDump, or several runs."""
    if not path.exists():
        raise UsageError("no such file or folder", where=path)
    runs = [str(run) for run in find_runs(path)]
    if not (path / MANIFEST).is_file():
        folders = {p.parents[-3] for p in paths if len(p.parts) > 2 and p.parts[0] == RUNS}
        runs += [str(path / folder) for folder in sorted(folders)] if len(folders) > 1 else []
    if not paths or (runs and not (path / MANIFEST).is_file()):
        lacking = f"no {MANIFEST}" if paths else f"no {MANIFEST} and no ETDump"
        what = f"holds {lacking}: not a run folder"
        raise UsageError(what, where=path, hint=f"runs: {', '.join(runs) or 'none below it'}")
    if len(paths) > MOST_TRACES:
        hint = "name the folder of one run"
        raise UsageError(f"holds {len(paths)} ETDumps, over {MOST_TRACES}", where=path, hint=hint)
