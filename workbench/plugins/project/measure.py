"""Measure the operators of an atlas."""

import zipfile
from pathlib import Path

from workbench.errors import UsageError
from workbench.options import MeasureOptions, Progress, silent
from workbench.plugins.project.atlas import Atlas, atlas_path, build_atlas
from workbench.records.codec import to_json
from workbench.run.ceilings import SHIPPED, device_of, unpack_program
from workbench.store import atomic_write, sha256_of
from workbench.workflow import measure


def unpack_atlas() -> list[Path]:
    """The programs of the atlas, in the cache."""
    with zipfile.ZipFile(SHIPPED) as archive:
        names = [name for name in archive.namelist() if name.startswith("atlas_")]
    return [unpack_program(name) for name in names]


def measure_atlas(
    target: str = "host", *, root: str | Path = "out_atlas", again: bool = False,
    progress: Progress = silent,
) -> tuple[Path, Atlas]:  # fmt: skip
    """Measure the operators of the atlas on a device: its file, which others can use, and itself.

    What an interrupted call has measured is not measured ``again``.
    """
    options = MeasureOptions(
        target=target, runs=20, processes=3, warmup=2, evidence=False, cold_start=False, roof=False
    )
    runs = [
        measure(path, options=options, root=root, again=again, artifacts=False, progress=progress)
        for path in unpack_atlas()
    ]
    if runs[0].emulated:
        raise UsageError("an emulated CPU has no times", where=f"--target {target}")
    device = device_of(runs[0].record.host, runs[0].record.runner)
    atlas = build_atlas(runs, device, sha256_of(SHIPPED)[:16])
    atomic_write(atlas_path(device), to_json(atlas))
    return atomic_write(Path(root) / "atlas.json", to_json(atlas)), atlas
