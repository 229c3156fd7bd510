"""Search for a faster variant of a program, within a budget; exports and runs are found again."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench import (
    ExportOptions,
    Measurement,
    MeasureOptions,
    Program,
    WorkbenchError,
    export_model,
    measure,
    open_program,
)
from workbench.api import UsageError
from workbench.graphs import versions
from workbench.jobs import (
    Progress,
    Recipe,
    RunnerError,
    apply_recipe,
    atomic_write,
    contrast_models,
    default_root,
    list_subjects,
    lock_folder,
    open_target,
    parse_name,
    show_progress,
    silent,
    to_json,
    to_plain,
)
from workbench.pages import format_size
from workbench.plugins.optimize import proposals as propose
from workbench.plugins.optimize.judging import (
    describe_variant,
    fastest,
    is_better,
    judge_variants,
)
from workbench.plugins.optimize.records import NOT_TRIED, STUDY, Study, Variant
from workbench.plugins.optimize.score import score_program
from workbench.plugins.optimize.search_options import OptimizeOptions
from workbench.plugins.optimize.study import pick_best

if TYPE_CHECKING:  # these import PyTorch
    from workbench.graphs import LoadedModel

FOLDER, RECIPE = "optimize", "recipe.yaml"
#: Parts of the budget: for diagnosis and dtypes, each further round, and the last one.
FIRST, LATER, LAST = 0.15, 0.15, 0.3
#: Variants that stay in the search after a round: the better half, at most so many.
KEPT, MOST_ROUNDS = 3, 5
#: Sources of inputs for which quantisation ranges mean nothing.
RANDOM = ("random:", "example inputs of the model")


def optimize(
    model: Any,
    inputs: Any = None,
    export: ExportOptions = ExportOptions(),
    options: OptimizeOptions = OptimizeOptions(),
    *,
    root: str | Path | None = None,
    progress: Progress | None = None,
) -> Study:
    """Search for a faster program of a model, and write a recipe of the best one.

    Tried are rewrites that the findings suggest, channels-last inputs, whole dtypes, and dtypes by
    layer, chosen by the time of each layer and by the noise if it alone is quantised. Every round
    measures variants interleaved with the baseline and an A/A control, and the best of all in a
    last round. After an interruption, the same call finds what was exported and measured.

    Parameters
    ----------
    model, inputs
        As for `profile`; of a program or run, the model by whose name it was exported.
    export
        The baseline; its inputs are those of every variant.
    options
        Limits, budget, thread counts and target.
    root
        The output folder, ``out_<model>`` by default; all is in its folder ``optimize``.
    progress
        Called with what is being done and the fraction of the budget spent; shown by default.

    Returns
    -------
    Study
        Every variant with its measurement; also in ``optimize.json``. If a variant is better,
        ``recipe.yaml`` is beside it.

    Raises
    ------
    UsageError
        The target is emulated, or another search is running in the folder.
    WorkbenchError
        The baseline cannot be exported or measured.

    Examples
    --------
    >>> study = wb.optimize("toy_cnn", options=wb.OptimizeOptions(budget_s=60))  # doctest: +SKIP
    >>> study.conclusion  # doctest: +SKIP
    '01-int8: 2.31x faster than the baseline (95 % interval 2.24-2.39), SQNR 31.2 dB, 0.1 MB'
    """
    options.check()
    export = apply_recipe(export)
    (subject,) = list_subjects(model)
    _check_target(options.target)
    with show_progress(progress) as show:
        given, label = _find_model(subject, inputs, export, show)
        place = (Path(root) if root else default_root(label)) / FOLDER
        place.mkdir(parents=True, exist_ok=True)
        with lock_folder(place):
            search = Search(given, label, export, options, place, show)
            search.run(subject if isinstance(subject, Program) else None)
    return search.study


def _check_target(name: str) -> None:
    """UsageError for a target whose times mean nothing."""
    with open_target(name) as target:
        if target.emulated:
            raise UsageError("an emulated CPU has no times", where=f"--target {name}")


def _find_model(
    subject: Any, inputs: Any, export: ExportOptions, progress: Progress
) -> tuple[str | LoadedModel, str]:
    """The name of a model, or the model itself if it has none or other inputs; and its label."""
    if isinstance(subject, Program):
        if not (subject.export and subject.export.spec):
            hint = "give the model itself"
            raise UsageError("the model's name is not recorded", where=subject.path, hint=hint)
        subject = subject.export.spec
    if inputs is None and isinstance(subject, str):
        return subject, parse_name(subject).label
    progress("importing torch", 0.0)
    from workbench import load_model

    loaded = load_model(subject, inputs, state_dict=export.state_dict or None)
    return loaded, loaded.name


class Search:
    """A search in progress; ``study`` is always up to date on disk."""

    def __init__(
        self, model: str | LoadedModel, label: str, export: ExportOptions,
        options: OptimizeOptions, place: Path, progress: Progress,
    ):  # fmt: skip
        self.model, self.label, self.options, self.place = model, label, options, place
        self.progress = progress
        self._started, self._export_s = time.monotonic(), 0.0
        #: The latest measurement of each variant, by name.
        self.latest: dict[str, Measurement] = {}
        self.study = Study(model if isinstance(model, str) else label, options)
        (self.base,) = self.add([Variant("the baseline", export, whole=True)])

    def run(self, subject: Program | None = None) -> None:
        """Search until the budget is spent or nothing new is proposed; then recommend.

        The ``subject`` is the program that is to be optimised, if it is not the model itself.
        """
        self.export(self.base)
        if self.study[self.base].state == "failed":
            raise WorkbenchError(self.study[self.base].reason, where=self.label)
        self.warn(subject)
        self.measure([], FIRST / 2)  # for the findings
        dtypes = propose.propose_dtypes(self.study[self.base], self.options.dtypes)
        self.try_out(self.add([*self.propose_rewrites(), *dtypes]), FIRST)
        for _ in range(MOST_ROUNDS):
            if self.left < LAST:
                break
            self.add([*self.propose_rewrites(), *self.propose_mixes()])
            planned = [v.name for v in self.study.variants if v.state == "planned"]
            if not planned:
                break
            self.try_out(planned, LATER)
        finalists = sorted({*self.leaders(2), self.whole} - {"", self.base})
        if finalists:
            self.measure(finalists, LAST if self.left > LAST else LATER)
        self.conclude(finalists)

    @property
    def left(self) -> float:
        """The part of the budget that is left."""
        return 1 - (time.monotonic() - self._started) / self.options.budget_s

    def save(self, **changes: Any) -> None:
        """Change the study, here and on disk."""
        spent_s = round(time.monotonic() - self._started, 1)
        self.study = replace(self.study, **{"spent_s": spent_s} | changes)
        atomic_write(self.place / STUDY, to_json(self.study))

    def update(self, name: str, **changes: Any) -> None:
        """Change a variant of the study."""
        variants = (replace(v, **changes) if v.name == name else v for v in self.study.variants)
        self.save(variants=tuple(variants))

    def add(self, proposed: Iterable[Variant]) -> list[str]:
        """Add variants that are new; returns the names of all of them."""
        names = []
        for variant in proposed:
            names_of = {v.options: v.name for v in self.study.variants}
            if variant.options not in names_of:
                dtype = variant.options.dtype + ("-mixed" if variant.options.module_dtypes else "")
                named = replace(variant, name=f"{len(names_of):02d}-{dtype}")
                self.save(variants=(*self.study.variants, named))
                names_of[named.options] = named.name
            names.append(names_of[variant.options])
        return list(dict.fromkeys(names))

    def report(self, text: str, fraction: float = 0.0) -> None:
        """Report progress, as a part of the budget."""
        self.progress(f"{self.label}: {text}", max(0.0, min(1.0, 1 - self.left)))

    def export(self, name: str) -> None:
        """Export a variant; what fails is kept with its reason."""
        variant, started = self.study[name], time.monotonic()
        self.report(f"exporting {name}")
        facts = export_variant(self.model, variant.options, self.place / name, self.options)
        hashes = {v.sha256: v.name for v in reversed(self.study.variants)}
        if facts.get("sha256") in hashes:
            twin = hashes[facts["sha256"]]
            facts |= {"state": "failed", "reason": f"the same program as {twin}"}
        self.update(name, **{"reason": ""} | facts)
        variant = self.study[name]
        self.report(f"{name}: {variant.reason or variant.flaw or variant.change}")
        self._export_s = max(self._export_s, time.monotonic() - started)

    def measure(self, names: Sequence[str], part: float) -> None:
        """Measure the baseline and variants interleaved, with a part of the budget."""
        wanted = list(dict.fromkeys([self.base, *names]))
        first, *candidates = (self.study[name].pte for name in wanted)
        how = MeasureOptions(
            toggle="none",
            against=tuple(candidates),
            threads=self.options.threads,
            budget_s=round(max(1.0, part * self.options.budget_s), 1),
            evidence=False,
            ops=self.options.ops,
            target=self.options.target,
            timeout_s=self.options.timeout_s,
        )
        self.report(f"measuring {', '.join(wanted)}")
        try:
            run = measure(
                first, None, how, root=self.place, again=False, artifacts=False,
                progress=self.report,
            )  # fmt: skip
        except RunnerError as error:
            new = [name for name in wanted[1:] if self.study[name].state == "exported"]
            if not new:
                raise
            if len(new) == 1:
                self.update(new[0], state="failed", reason=str(error))
            for name in new if len(new) > 1 else ():  # each alone, to find the one that fails
                self.measure([name], part / len(new))
            return
        self.latest |= {name: fastest(run, self.study[name]) for name in wanted}
        machine = str(run.record.host.get("cpu"))
        self.save(variants=judge_variants(run, self.study, wanted), machine=machine)

    def try_out(self, names: Sequence[str], part: float) -> None:
        """Export and measure new variants, with their parents and the leaders so far.

        As many as the budget allows with their measurement and the last.
        """
        kept_s = (part + LATER) * self.options.budget_s
        for name in names:
            if self.left * self.options.budget_s > kept_s + self._export_s:
                self.export(name)
            else:
                self.update(name, reason=NOT_TRIED)
        new = [name for name in names if is_useful(self.study[name])]
        if new:
            parents = [self.study[name].parent for name in new]
            self.measure([*parents, *self.leaders(KEPT), *new], part)

    def leaders(self, most: int) -> list[str]:
        """The better half of the variants that may be recommended, the best first."""
        ranked = [v.name for v in pick_best(self.study)]
        return ranked[: min(most, math.ceil(len(ranked) / 2))]

    @property
    def whole(self) -> str:
        """The best variant of a single dtype without rewrites, other than the baseline."""
        names = (v.name for v in pick_best(self.study) if v.whole and v.name != self.base)
        return next(names, "")

    def propose_rewrites(self) -> Iterator[Variant]:
        """Rewrites of the best program so far; those that helped once, for every other dtype."""
        best = next(iter(self.leaders(1)), self.base)
        yield from propose.propose_rewrites(self.study[best], self.latest[best].opportunities)
        for other in self.study.variants:
            if self.helped and other.whole and other.state == "measured" and not other.flaw:
                yield propose.combine_variants(other, self.helped)

    @property
    def helped(self) -> list[Variant]:
        """The single rewrites that were shown to gain, which others may then expect."""
        rewritten = [v for v in self.study.variants if not v.whole and not v.options.module_dtypes]
        return [v for v in rewritten if "; " not in v.change and v.helps]

    def propose_mixes(self) -> Iterator[Variant]:
        """Programs with a dtype by layer, from the traces of the whole dtypes."""
        whole = [v for v in self.study.variants if v.whole and v.state == "measured"]
        traced = {v.options.dtype: self.latest[v.name] for v in whole}
        traced = {dtype: on for dtype, on in traced.items() if on.has_layers}
        base = self.study[self.base]
        quantized = {dtype: on for dtype, on in traced.items() if dtype in propose.MIXED}
        if base.options.dtype not in traced or not quantized:
            return
        before = traced[base.options.dtype]
        if not self.study.layers:
            times = propose.own_ms(before)
            order = sorted(times, key=lambda layer: -times[layer])
            seconds = FIRST * self.options.budget_s
            self.report("measuring the noise of each layer")
            noise = propose.measure_noise(self.model, base.options, order, seconds)
            self.save(layers=noise)
        choices = propose.list_choices(self.study.layers, before, quantized)
        mixes = [v for v in self.study.variants if v.options.module_dtypes]
        measured = [self.latest[v.name] for v in mixes if v.state == "measured"]
        static = [on for dtype, on in quantized.items() if dtype == "int8"]
        conversions = propose.conversion_ms([*static, *measured])
        least = self.options.min_sqnr_db
        mix = propose.propose_mix(base, choices, least, conversions, mixes)
        if mix is not None:
            yield mix
            if self.helped:
                both = propose.combine_variants(mix, self.helped)
                change = f"{mix.change}; {both.change}"
                yield replace(both, parent=base.name, change=change)

    def warn(self, subject: Program | None) -> None:
        """Say what makes the result doubtful."""
        export, texts = open_program(self.study[self.base].pte).export, list[str]()
        if export and export.input_source.startswith(RANDOM):
            texts.append(
                f"inputs: {export.input_source}. Ranges and errors of quantisation then mean "
                "little: pass representative samples with --inputs"
            )
        other = subject.export if subject else None
        if export and other and (models := contrast_models(other, export)):
            texts.append(f"the baseline against {other.pte}: {models}")
        for text in texts:
            self.report(f"warning: {text}")
        self.save(warnings=tuple(texts))

    def conclude(self, finalists: Sequence[str]) -> None:
        """Recommend the best of the last round that is shown to be better than the baseline.

        The best of many earlier measurements would be one with luck.
        """
        better = [v for v in pick_best(self.study) if v.name in finalists and is_better(v)]
        tried = sum(v.state == "measured" for v in self.study.variants) - 1
        untried = [v.name for v in self.study.variants if v.reason == NOT_TRIED]
        text = f"nothing helped: none of {tried} measured variants is better within the limits"
        if not tried and untried:
            text = "tried nothing: the budget ended before the first variant; give more: --budget"
        (self.place / RECIPE).unlink(missing_ok=True)
        if better:
            best = better[0]
            text = f"{best.name}: {describe_variant(best)}"
            changes, above = [text], best
            while above.name != self.base:
                changes.insert(0, above.change)
                above = self.study[above.parent]
            facts = (self.study.model, best.options, best.threads, tuple(changes))
            recipe = Recipe(*facts, best.sha256, versions())
            atomic_write(self.place / RECIPE, write_recipe(recipe))
        text += f"; {NOT_TRIED}: {', '.join(untried)}" if untried else ""
        self.save(best=better[0].name if better else "", whole=self.whole, conclusion=text)


def write_recipe(recipe: Recipe) -> str:
    """A recipe as YAML, without options that have their default."""
    import yaml

    plain, default = to_plain(recipe), to_plain(ExportOptions())
    plain["export"] = {k: v for k, v in plain["export"].items() if v != default[k]}
    head = "# Export this program again: workbench export MODEL --recipe FILE\n"
    return head + yaml.safe_dump(plain, sort_keys=False, width=100)


def is_useful(variant: Variant) -> bool:
    """Whether a variant is to be measured: it may be chosen, or mixes are made of it."""
    mixes = variant.whole and variant.options.dtype in propose.MIXED
    return variant.state == "exported" and (not variant.flaw or mixes)


def export_variant(
    model: str | LoadedModel, export_options: ExportOptions, root: Path, options: OptimizeOptions
) -> dict[str, Any]:
    """Export a variant; what is known of it then."""
    try:
        program = export_model(model, options=export_options, root=root, progress=silent)
        export = program.export
        assert export
        sqnr, score = score_program(model, export_options, program, options.metric)
    except WorkbenchError as error:
        return {"state": "failed", "reason": str(error)}
    size = export.size_bytes / 1e6
    flaws = []
    if options.metric and score is None:
        flaws.append(export.fault or "no score")
    elif options.metric and score is not None and score < options.min_score:
        flaws.append(f"score {score:g}, below {options.min_score:g}")
    elif not options.metric and sqnr is not None and sqnr < options.min_sqnr_db:
        flaws.append(f"SQNR {sqnr:.1f} dB, below {options.min_sqnr_db:g} dB")
    elif not options.metric and export.fault:
        flaws.append(export.fault)
    if options.max_size_mb and size > options.max_size_mb:
        flaws.append(f"{format_size(export.size_bytes)}, above {options.max_size_mb:g} MB")
    return {
        "state": "exported",
        "flaw": "; ".join(flaws),
        "pte": str(program.path),
        "sha256": export.sha256,
        "size_bytes": export.size_bytes,
        "sqnr_db": sqnr,
        "score": score,
    }
