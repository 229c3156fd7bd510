"""Recorded samples, and published measurements as frames."""

import math
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

import workbench
from workbench.analysis.operators import CATEGORIES
from workbench.errors import StoreError, unknown_name
from workbench.frames import CATEGORIES as CATEGORIES_FRAME
from workbench.frames import check
from workbench.records.runs import SCHEMA_VERSION
from workbench.store import load_record

#: In a checkout, ``workbench/data`` is a link.
DATA = (Path(workbench.__file__).parent / "data").resolve()

#: The recorded runs, one output folder per model.
SAMPLES = DATA / "samples"


def sample_run(model: str = "mobilenet_v3_small") -> Path:
    """The folder of a recorded run; analysing it needs neither a device nor PyTorch.

    Raises
    ------
    UsageError
        There is no sample of this model.

    Examples
    --------
    >>> wb.sample_run("vit_tiny").name
    'linux'
    """
    manifests = sorted(SAMPLES.glob("out_*/runs/*/manifest.json"))
    runs = {path.parts[-4].removeprefix("out_"): path.parent for path in manifests}
    if model not in runs:
        raise unknown_name("sample", model, runs)
    return runs[model]


def sample_model() -> Path:
    """A file with one model twice: as trained, and as prepared for a device.

    Examples
    --------
    >>> wb.sample_model().name
    'my_segmenter.py'
    """
    return DATA / "onboarding" / "my_segmenter.py"


def sample_exports() -> Path:
    """The folder of recorded export records: one model in several dtypes.

    Examples
    --------
    >>> [export.dtype for export in wb.read_exports(wb.sample_exports())]
    ['fp16', 'fp32', 'int8']
    """
    return SAMPLES / "exports"


#: The published case studies.
FOLDER = DATA / "case_studies"

#: Relative tolerance between the published categories and their rounded total.
_ROUNDING = 0.01


@dataclass(frozen=True)
class Source:
    """Where the figures were published."""

    title: str
    publisher: str
    url: str


@dataclass(frozen=True)
class Published:
    """One experiment as published."""

    name: str
    dtype: str
    sme2: bool
    e2e_ms: float
    categories_ms: dict[str, float]


@dataclass(frozen=True)
class CaseStudy:
    """Published figures, with their source."""

    title: str
    model: str
    device: str
    threads: int
    source: Source
    see_also: tuple[Source, ...]
    notes: tuple[str, ...]
    experiments: tuple[Published, ...]
    schema_version: int = SCHEMA_VERSION

    @property
    def latencies(self) -> pd.DataFrame:
        """E2E by ``dtype``: ``baseline_ms`` (SME2 off), ``candidate_ms`` (on) and ``speedup``."""
        times = {(e.dtype, e.sme2): e.e2e_ms for e in self.experiments}
        dtypes = dict.fromkeys(e.dtype for e in self.experiments)
        rows = [(d, times.get((d, False)), times.get((d, True))) for d in dtypes]
        table = pd.DataFrame(rows, columns=["dtype", "baseline_ms", "candidate_ms"])
        return table.assign(speedup=table["baseline_ms"] / table["candidate_ms"])

    @property
    def categories(self) -> dict[str, pd.DataFrame]:
        """``frames.CATEGORIES`` by the name of the experiment."""
        return {e.name: _tabulate(e) for e in self.experiments}


def load_case_study(name: str | Path) -> CaseStudy:
    """Read published figures.

    Parameters
    ----------
    name
        A name in ``data/case_studies`` (``squeezesam``), or the path of a JSON file.

    Raises
    ------
    UsageError
        There is no such case study.
    StoreError
        The file is not a case study, or its figures contradict each other.

    Examples
    --------
    >>> wb.load_case_study("squeezesam").latencies["dtype"].tolist()
    ['fp16', 'int8']
    """
    path = Path(name)
    if path.suffix != ".json":
        path = FOLDER / f"{name}.json"
        if not path.is_file():
            raise unknown_name("case study", str(name), [p.stem for p in FOLDER.glob("*.json")])
    study = load_record(CaseStudy, path)
    for experiment in study.experiments:
        _check(experiment, path)
    return study


def _check(experiment: Published, path: Path) -> None:
    """Refuse impossible figures."""
    for category in experiment.categories_ms:
        if category not in CATEGORIES:
            raise unknown_name("category", category, CATEGORIES, where=path)
    times = experiment.categories_ms.values()
    if not all(math.isfinite(ms) and ms >= 0 for ms in [experiment.e2e_ms, *times]):
        raise StoreError(f"{experiment.name!r} has an invalid time", where=path)
    if not math.isclose(sum(times), experiment.e2e_ms, rel_tol=_ROUNDING):
        problem = f"the categories of {experiment.name!r} do not add up to its E2E latency"
        raise StoreError(problem, where=path)


def _tabulate(experiment: Published) -> pd.DataFrame:
    published = experiment.categories_ms
    times = [(name, published[name]) for name in CATEGORIES if name in published]
    table = pd.DataFrame(times, columns=["category", "mean_ms"])
    table["share"] = table["mean_ms"] / table["mean_ms"].sum()
    table["operators"] = pd.array([pd.NA] * len(table), dtype="Int64")
    return check(table, CATEGORIES_FRAME)
