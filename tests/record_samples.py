"""Record samples again: ``python tests/record_samples.py NAME ...``, on an idle machine.

``exports`` are how a model is exported, which no other program disturbs; ``study`` is a search of
half an hour, which tries all of its variants.

Afterwards, ``python tests/test_golden_runs.py`` and the figures of the documents.
"""

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace

from IPython.core.interactiveshell import InteractiveShell

import workbench as wb
from workbench.datasets import DATA, SAMPLES
from workbench.run import steps

NOTEBOOK = DATA.parent / "notebooks" / "01_first_profile.ipynb"
#: Traced inferences: of a sample, few are enough, and each takes up to 20 kB.
steps.MAX_TRACED_BATCH, steps.MAX_TRACED = 2, 40


def of_the_notebook(subject: str) -> Callable[[], wb.Run]:
    """What notebook 01 measures of its own cells, whose lines the recording names."""

    def record() -> wb.Run:
        shell = InteractiveShell.instance()  # whose cells have numbers
        cells = [
            cell
            for cell in json.loads(NOTEBOOK.read_text())["cells"]
            if cell["cell_type"] == "code"
        ]
        for cell in cells:
            source = "".join(cell["source"])
            if source.startswith(("run_dir", "from", "class", "x =")):
                line = source.partition("\npair")[0] if "Edited" in source else source
                shell.run_cell(line.partition("\nrun =")[0], store_history=True).raise_error()
            else:
                shell.run_cell("", store_history=True)
        return wb.profile(eval(subject, shell.user_ns), shell.user_ns["x"])

    return record


def of_model(name: str, dtype: str = "", **options: object) -> Callable[[], wb.Run]:
    return lambda: wb.profile(name, dtype=dtype, measure=wb.MeasureOptions(**options))


SEGMENTER, SENTENCES, SHUFFLED = (
    DATA / "onboarding" / f"{name}.py" for name in ("my_segmenter", "sentences", "shuffled")
)
RECORDINGS = {
    "Net": of_the_notebook("Net()"),
    "Edited": of_the_notebook("[Net(), Edited()]"),
    "mobilenet_v3_small": of_model("mobilenet_v3_small"),
    "mobilenet_v3_small_int8": of_model("mobilenet_v3_small", "int8", isa_ladder=True),
    "squeezesam": of_model("squeezesam", "int8", isa_ladder=True),
    "vit_tiny": of_model("vit_tiny"),
    "unet_small": of_model("unet_small", threads=(1, 2)),
    "AsTrained": of_model(f"{SEGMENTER}:AsTrained"),
    "Ready": of_model(f"{SEGMENTER}:Ready"),
    "Sentences": of_model(f"{SENTENCES}:Sentences", against=("eager", "onnx")),
    "Shuffled": of_model(f"{SHUFFLED}:Shuffled", "int8", isa_ladder=True, budget_s=90.0),
    "toy_cnn": of_model("toy_cnn", target="qemu", toggle="sme2"),
    "smollm2": of_model(
        "llm:smollm2_135m,layers=2", "8da4w", phases=("prefill=128", "decode=1@128"), budget_s=90.0
    ),
}


def record(name: str) -> None:
    """Record a sample in place of the last one."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        run = RECORDINGS[name]()
        print(f"{name}: {run!r}, quality {run.quality['grade'].max()}")
        kind = "qemu-aarch64" if run.emulated else "linux"
        target = SAMPLES / f"out_{name}" / "runs" / kind
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(run.path, target)
        manifest = target / "manifest.json"  # names files as they are in every checkout
        manifest.write_text(manifest.read_text().replace(f"{DATA.parent}{os.sep}", ""))
        os.chdir(DATA)


def record_exports() -> None:
    """Record how the model of the case study is exported, in place of the last records."""
    target = SAMPLES / "exports"
    shutil.rmtree(target)
    target.mkdir()
    half = wb.ExportOptions(dtype="fp16")
    exports = [wb.ExportOptions(), half, replace(half, rewrite=("layer_norm",))]
    for options in [*exports, wb.ExportOptions(dtype="int8")]:
        with tempfile.TemporaryDirectory() as folder:
            program = wb.export_model("squeezesam", options=options, root=folder)
            record = program.path.with_name(f"{program.path.name}.export.json")
            content = record.read_text().replace(f"{DATA.parent}{os.sep}", "")
            (target / record.name).write_text(content)


def record_study() -> None:
    """Record a search for a faster program of the model of the case study."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # the study names its programs from here
        study = wb.optimize("squeezesam", options=wb.OptimizeOptions(budget_s=1800.0))
        print(f"study: {study.conclusion}")
        target = SAMPLES / "out_squeezesam" / "optimize"
        shutil.copy(f"out_squeezesam/optimize/{target.name}.json", target)
        os.chdir(DATA)


if __name__ == "__main__":
    others = {"exports": record_exports, "study": record_study}
    for each in sys.argv[1:]:
        others[each]() if each in others else record(each)
