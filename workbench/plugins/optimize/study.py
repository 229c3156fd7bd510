"""What an optimisation tried, and what it brought."""

import pandas as pd

from workbench import Run
from workbench.api import Frame
from workbench.plugins.optimize.records import STUDY, Study, Variant

VARIANTS = Frame.make(
    "variants",
    ("name", "text", "", "name of the variant"),
    ("change", "text", "", "what it changes, relative to its parent"),
    ("parent", "text", "", "the variant that it was made of; empty for the baseline"),
    ("state", "text", "", "planned | exported | measured | failed"),
    ("latency_ms", "float", "ms", "latency in its last round, at its fastest thread count"),
    *Frame.interval("the latency's", "ms", suffix="_ms"),
    "threads",
    ("speedup", "float", "ratio", "latency of the baseline / its own, interleaved"),
    *Frame.interval("the speed-up's", "ratio", prefix="speedup_"),
    ("sqnr_db", "float", "dB", "signal to noise ratio of the worst output; none: no noise"),
    ("score", "float", "", "by the user's metric"),
    ("size_mb", "float", "MB", "size of the program"),
    ("note", "text", "", "recommended or best dtype; why it failed or may not be chosen"),
)


def find_study(run: Run) -> Study | None:
    """The optimisation that a run was measured for, if any."""
    folder = run.path.resolve().parent.parent
    study = Study.read(folder) if (folder / STUDY).is_file() else None
    programs = {program.sha256 for program in run.record.plan.all_programs}
    # A later one, of another model of that name, replaces it.
    return study if study and programs & {v.sha256 for v in study.variants} else None


def pick_best(study: Study) -> list[Variant]:
    """The measured variants without a flaw, the fastest first."""
    fit = [v for v in study.variants if v.state == "measured" and not v.flaw]
    return sorted(fit, key=lambda variant: -(variant.speedup or 1.0))


def tabulate_variants(study: Study) -> pd.DataFrame:
    """Every variant with its measurement: ``frames.VARIANTS``.

    The baseline first, then by latency; then those that were not measured.
    """
    rows = []
    for variant in study.variants:
        row = {name: getattr(variant, name, None) for name in VARIANTS.names}
        row["size_mb"] = variant.size_bytes / 1e6 if variant.size_bytes else None
        role = {study.best: "recommended", study.whole: "best dtype"}.get(variant.name, "")
        row["note"] = "; ".join(filter(None, [role, variant.flaw or variant.reason]))
        rows.append(row)
    table = pd.DataFrame(rows, columns=VARIANTS.names)
    numbers = [name for name, kind, *_ in VARIANTS.columns if kind == "float"]
    table[numbers] = table[numbers].astype(float)
    speed = table["speedup"].where(table.index > 0, float("inf"))
    order = speed.sort_values(ascending=False, na_position="last", kind="stable").index
    return VARIANTS.check(table.loc[order].reset_index(drop=True))
