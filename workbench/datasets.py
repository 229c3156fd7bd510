"""Recorded samples."""

from collections.abc import Collection
from pathlib import Path

from workbench.errors import UsageError, WorkbenchError, unknown_name
from workbench.store import DATA, SAMPLES


def sample_run(model: str = "mobilenet_v3_small") -> Path:
    """The folder of a recorded run; analysing it needs neither a device nor PyTorch.

    A checkout has all of them, the package five: mobilenet_v3_small in fp32 and int8, toy_cnn, and
    Net and Edited of notebook 01.

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
        raise _unknown(model, runs)
    return runs[model]


def sample_file(name: str) -> Path:
    """The path of another sample, by its name.

    ``exports``: export records of one model in several dtypes; ``out_squeezesam``: the output of a
    search, in a checkout only; ``my_segmenter.py``: one model as trained, and as prepared for a
    device; ``sentences.py``: a network that XNNPACK does not take whole; ``squeezesam.csv``:
    published times of SqueezeSAM on a phone, by category.

    Raises
    ------
    UsageError
        There is no such sample.

    Examples
    --------
    >>> sorted({export.dtype for export in wb.read_exports(wb.sample_file("exports"))})
    ['fp16', 'fp32', 'int8']
    """
    folders = (SAMPLES, DATA / "onboarding", DATA / "case_studies")
    files = {path.name: path for folder in folders for path in folder.iterdir()}
    if name not in files:
        raise _unknown(name, files)
    return files[name]


def _unknown(name: str, samples: Collection[str]) -> WorkbenchError:
    """The error for a sample that is not there."""
    if (DATA.parent / "tests").is_dir():
        return unknown_name("sample", name, samples)
    hint = f"clone the repository, which has all samples; here are {', '.join(sorted(samples))}"
    return UsageError("is no sample of the package", where=name, hint=hint)
