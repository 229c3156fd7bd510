"""Search for a faster or smaller variant of a program, within a budget; every step is on disk."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench import (
    ExportOptions,
    Measurement,
    MeasureOptions,
    Program,
    Run,
    WorkbenchError,
    export_model,
    measure,
    open_program,
    open_run,
)
from workbench.api import (
    Progress,
    RunnerError,
    StoreError,
    UsageError,
    atomic_write,
    format_size,
    show_progress,
    silent,
    to_json,
    unknown_name,
)
from workbench.graphs import versions
from workbench.jobs import (
    Recipe,
    apply_recipe,
    contrast_models,
    default_root,
    identify_export,
    identify_runner,
    list_subjects,
    lock_folder,
    open_target,
    parse_name,
    save_recipe,
    share_machine,
)
from workbench.plugins.optimize import proposals as propose
from workbench.plugins.optimize.judging import (
    describe_variant,
    fastest,
    is_better,
    is_open,
    judge_variants,
)
from workbench.plugins.optimize.options import OBJECTIVES, OptimizeOptions
from workbench.plugins.optimize.records import NOT_TRIED, STUDY, Round, Study, Variant
from workbench.plugins.optimize.score import score_program
from workbench.plugins.optimize.study import pick_best
from workbench.plugins.optimize.workers import Submit, open_workers

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
    """Search for a faster or smaller program of a model, and write a recipe of the best one.

    Tried are whole dtypes, rewrites that the findings suggest, channels-last inputs, and dtypes by
    layer, chosen by the time of each layer and by the noise if it alone is quantised. Every round
    measures variants interleaved with the baseline and an A/A control, and the best of all in a
    last round. Exports wait while something is measured. After an interruption, the same call
    continues. On an emulated target, executed kernels decide, not times.

    Parameters
    ----------
    model, inputs
        As for `profile`; of a program or run, the model by whose name it was exported. A module of
        yours is exported in this process, one variant at a time.
    export
        The baseline; its inputs are those of every variant.
    options
        Limits, objective, budget, thread counts and target.
    root
        The output folder, ``out_<model>`` by default; all is in its folder ``optimize``.
    progress
        Called with what is being done and the fraction of the budget spent; shown by default.

    Returns
    -------
    Study
        Every variant with its prediction and its measurement; also in ``optimize.json``. If a
        variant is better, ``recipe.yaml`` is beside it.

    Raises
    ------
    UsageError
        An option is invalid, or another search is running in the folder.
    WorkbenchError
        The baseline cannot be exported or measured.

    Examples
    --------
    >>> study = wb.optimize("toy_cnn", options=wb.OptimizeOptions(budget_s=60))  # doctest: +SKIP
    >>> study.conclusion  # doctest: +SKIP
    '01-int8: 2.31x faster than the baseline (95 % interval 2.24-2.39), SQNR 31.2 dB, 0.1 MB'
    """
    if options.objective not in OBJECTIVES:
        raise unknown_name("objective", options.objective, OBJECTIVES)
    export = apply_recipe(export)
    (given,) = list_subjects(model)
    subject = given if isinstance(given, Program) else None
    if isinstance(given, Program):
        if not (given.export and given.export.spec):
            hint = "give the model itself"
            raise UsageError("the model's name is not recorded", where=given.path, hint=hint)
        given = given.export.spec
    with contextlib.ExitStack() as stack:
        show = stack.enter_context(show_progress(progress))
        if inputs is None and isinstance(given, str):
            label = parse_name(given).label
            submit = stack.enter_context(open_workers(options.jobs))
        else:  # what a cell defines is in no other process
            show("importing torch", 0.0)
            from workbench import load_model

            given = load_model(given, inputs, state_dict=export.state_dict or None)
            label = given.name
            submit = stack.enter_context(ThreadPoolExecutor(1)).submit
        place = (Path(root) if root else default_root(label)) / FOLDER
        place.mkdir(parents=True, exist_ok=True)
        stack.enter_context(lock_folder(place))
        search = Search(given, label, export, options, place, submit, show)
        search.run(subject)
    return search.study


class Search:
    """A search in progress; ``study`` is always up to date on disk."""

    def __init__(
        self, model: str | LoadedModel, label: str, export: ExportOptions,
        options: OptimizeOptions, place: Path, submit: Submit, progress: Progress,
    ):  # fmt: skip
        self.model, self.label, self.options, self.place = model, label, options, place
        self.submit, self.progress = submit, progress
        self._started, self._export_s = time.monotonic(), 0.0
        self._replayed, self._runs = 0, dict[str, Run]()
        with open_target(options.target) as target:
            self.emulated, machine = target.emulated, target.describe().get("cpu")
        made_from = identify_export(model, export)
        settings = asdict(replace(options, budget_s=0.0, jobs=1))
        name = model if isinstance(model, str) else label
        measured = [identify_runner(options.target), machine]
        text = json.dumps([name, asdict(export), made_from, settings, measured], sort_keys=True)
        self.study = Study(name, hashlib.sha256(text.encode()).hexdigest()[:16], options)
        with contextlib.suppress(StoreError, UsageError):  # none, or of another version
            if (earlier := Study.read(place)).key == self.study.key and made_from:
                longer = earlier.options.budget_s != options.budget_s
                rounds = tuple(replace(r, last=r.last and not longer) for r in earlier.rounds)
                self.study = replace(earlier, options=options, rounds=rounds)
        self._earlier_s = self.study.spent_s
        (self.base,) = self.add([Variant("the baseline", export, whole=True)])

    def run(self, subject: Program | None = None) -> None:
        """Search until the budget is spent or nothing new is proposed; then recommend.

        The ``subject`` is the program that is to be optimised, if it is not the model itself.
        """
        if self.study[self.base].state == "failed":  # last time
            self.update(self.base, state="planned", reason="")
        self.export([self.base])
        if self.study[self.base].state == "failed":
            raise WorkbenchError(self.study[self.base].reason, where=self.label)
        self.warn(subject)
        if not self.emulated:
            self.measure([], FIRST / 2)  # for the findings
        dtypes = propose.propose_dtypes(self.study[self.base], self.options.dtypes)
        self.try_out(self.add([*self.propose_rewrites(), *dtypes]), FIRST)
        for _ in range(MOST_ROUNDS):
            if self._next.last if self._next else self.left < LAST:
                break
            proposed = self.add([*self.propose_rewrites(), *self.propose_mixes()])
            proposed += [v.name for v in self.study.variants if v.reason == NOT_TRIED]
            if not self._next and not any(map(is_open, map(self.study.__getitem__, proposed))):
                break
            self.try_out(proposed, LATER)
        finalists = {*self.leaders(2), self.whole} - {"", self.base}
        if finalists or self._next:
            self.measure(sorted(finalists), max(LATER, min(LAST, self.left)), last=True)
        self.conclude()

    @property
    def left(self) -> float:
        """The part of the budget that is left."""
        spent_s = self._earlier_s + time.monotonic() - self._started
        return 1 - spent_s / self.options.budget_s

    def promise(self, variant: Variant) -> float:
        """What a variant is expected to save, in ms; of an upper bound, half."""
        gain = variant.predicted
        if gain is None and variant.whole and self.study[variant.parent].round >= 0:
            findings = self.measurement(self.study[variant.parent]).opportunities
            causes = [each for each in findings if each.remedy == variant.options.dtype]
            expected = (each.expected_ms for each in causes)
            return sum(ms for ms in expected if not math.isnan(ms))
        return 0.0 if gain is None else gain.high_ms / 2 if gain.ms is None else gain.ms

    @property
    def _next(self) -> Round | None:
        """The next round, if it was begun before an interruption."""
        return next(iter(self.study.rounds[self._replayed :]), None)

    def save(self, **changes: Any) -> None:
        """Change the study, here and on disk."""
        spent_s = round(self._earlier_s + time.monotonic() - self._started, 1)
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

    def export(self, names: Sequence[str]) -> None:
        """Export variants in parallel; what fails is kept with its reason."""
        wanted = [self.study[name] for name in names if self.study[name].state == "planned"]
        if not wanted:
            return
        self.report(f"exporting {', '.join(v.name for v in wanted)}")
        jobs = [(self.model, v.options, self.place / v.name, self.options) for v in wanted]
        futures = [self.submit(export_variant, job) for job in jobs]
        started = time.monotonic()
        for name, future in zip([v.name for v in wanted], futures, strict=True):
            try:
                facts = future.result()
            except WorkbenchError as error:  # the worker died
                facts = {"state": "failed", "reason": str(error)}
            hashes = {v.sha256: v.name for v in reversed(self.study.variants)}
            if facts.get("sha256") in hashes:
                twin = hashes[facts["sha256"]]
                facts |= {"state": "failed", "reason": f"the same program as {twin}"}
            self.update(name, **{"reason": ""} | facts)
            variant = self.study[name]
            self.report(f"{name}: {variant.reason or variant.flaw or variant.change}")
        self._export_s = max(self._export_s, time.monotonic() - started)

    def measure(self, names: Sequence[str], part: float, last: bool = False) -> None:
        """Measure the baseline and variants interleaved, with a part of the budget."""
        planned = self._next
        if planned is None:
            wanted = tuple(dict.fromkeys([self.base, *names]))
            planned = Round(wanted, round(max(1.0, part * self.options.budget_s), 1), last=last)
            self.save(rounds=(*self.study.rounds, planned))
        number, self._replayed = self._replayed, self._replayed + 1
        if planned.run_dir:
            return
        first, *others = (self.study[name].pte for name in planned.variants)
        how = MeasureOptions(
            toggle="none",
            against=tuple(others),
            threads=self.options.threads,
            budget_s=0.0 if self.emulated else planned.budget_s,
            evidence=self.emulated,
            ops=self.options.ops,
            target=self.options.target,
            timeout_s=self.options.timeout_s,
        )
        try:
            self.report(f"measuring {', '.join(planned.variants)}")
            run = measure(
                first, None, how, root=self.place, again=False, artifacts=False,
                progress=self.report,
            )  # fmt: skip
        except RunnerError as error:
            self._replayed = number
            self.save(rounds=self.study.rounds[:number])
            new = [n for n in planned.variants[1:] if self.study[n].state == "exported"]
            if not new:
                raise
            if len(new) == 1:
                self.update(new[0], state="failed", reason=str(error))
            for name in new if len(new) > 1 else ():  # each alone, to find the one that fails
                self.measure([name], part / len(new))
            return
        done = replace(planned, run_dir=str(run.path.relative_to(self.place)))
        self.save(
            rounds=(*self.study.rounds[:number], done, *self.study.rounds[number + 1 :]),
            variants=judge_variants(run, self.study, planned.variants, number),
            machine=str(run.record.host.get("cpu")),
            emulated=run.emulated,
        )

    def try_out(self, names: Sequence[str], part: float) -> None:
        """Export and measure new variants, with their parents and the leaders so far.

        The most promising first, as far as the budget allows with their measurement and the last.
        """
        begun = self._next.variants if self._next else names  # before an interruption
        ranked = [name for name in names if name in begun]
        ranked.sort(key=lambda name: -self.promise(self.study[name]))
        kept_s = (part + LATER) * self.options.budget_s
        while ranked and (
            self._next or self.left * self.options.budget_s > kept_s + self._export_s
        ):
            now, ranked = ranked[: self.options.jobs], ranked[self.options.jobs :]
            self.export(now)
        for name in ranked:
            if self.study[name].state == "planned":
                self.update(name, reason=NOT_TRIED)
        new = [n for n in names if is_open(self.study[n]) and self.study[n].state != "planned"]
        if new or self._next:
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

    def measurement(self, variant: Variant) -> Measurement:
        """The latest measurement of a variant."""
        done = self.study.rounds[variant.round]
        if done.run_dir not in self._runs:
            self._runs[done.run_dir] = open_run(self.place / done.run_dir)
        return fastest(self._runs[done.run_dir], done.variants.index(variant.name))

    def propose_rewrites(self) -> Iterator[Variant]:
        """Rewrites of the best program so far; those that helped once, for every other dtype."""
        for name in self.leaders(1) or [self.base]:
            best = self.study[name]
            if best.round >= 0:
                yield from propose.propose_rewrites(best, self.measurement(best).opportunities)
        for other in self.study.variants:
            if self.helped and other.whole and other.state == "measured" and not other.flaw:
                yield propose.combine_variants(other, self.helped)

    @property
    def helped(self) -> list[Variant]:
        """The single rewrites with a measured gain, which others may then expect."""
        rewritten = [v for v in self.study.variants if not v.whole and not v.options.module_dtypes]
        single = [v for v in rewritten if "; " not in v.change]
        return [replace(v, predicted=v.gain) for v in single if v.gain and v.gain.low_ms > 0]

    def propose_mixes(self) -> Iterator[Variant]:
        """Programs with a dtype by layer, from the traces of the whole dtypes."""
        whole = [v for v in self.study.variants if v.whole and v.state == "measured"]
        traced = {v.options.dtype: self.measurement(v) for v in whole}
        traced = {dtype: on for dtype, on in traced.items() if on.has_layers and not on.emulated}
        base = self.study[self.base]
        quantized = {dtype: on for dtype, on in traced.items() if dtype in propose.MIXED}
        if base.options.dtype not in traced or not quantized:
            return
        before = traced[base.options.dtype]
        if {"fp16", "int8"} <= traced.keys():  # a row that says why not
            options = replace(base.options, dtype="int8", module_dtypes=(("*", "fp16"),))
            yield Variant("int8, with half precision instead of single", options, base.name)
        if not self.study.layers:
            times = propose.own_ms(before)
            order = sorted(times, key=lambda layer: -times[layer])
            job = (self.model, base.options, order, FIRST * self.options.budget_s)
            self.report("measuring the noise of each layer")
            self.save(layers=self.submit(propose.measure_variant_noise, job).result())
        choices = propose.list_choices(self.study.layers, before, quantized)
        mixes = [v for v in self.study.variants if v.options.module_dtypes]
        measured = [self.measurement(v) for v in mixes if v.state == "measured"]
        static = [on for dtype, on in quantized.items() if dtype == "int8"]
        conversions = propose.conversion_ms([*static, *measured])
        least = self.options.min_sqnr_db
        mix = propose.propose_mix(base, choices, least, conversions, mixes)
        if mix is not None:
            yield mix
            if self.helped:
                both = propose.combine_variants(mix, self.helped)
                change = f"{mix.change}; {both.change}"
                yield replace(both, parent=base.name, change=change, predicted=None)

    def warn(self, subject: Program | None) -> None:
        """Say once what makes the result doubtful."""
        export, texts = open_program(self.study[self.base].pte).export, list[str]()
        if export and export.input_source.startswith(RANDOM):
            texts.append(
                f"inputs: {export.input_source}. Ranges and errors of quantisation then mean "
                "little: pass representative samples with --inputs"
            )
        other = subject.export if subject else None
        if export and other and (models := contrast_models(other, export)):
            texts.append(f"the baseline against {other.pte}: {models}")
        texts = [text for text in texts if text not in self.study.warnings]
        for text in texts:
            self.report(f"warning: {text}")
        if texts:
            self.save(warnings=(*self.study.warnings, *texts))

    def conclude(self) -> None:
        """Recommend the best of the last round that is shown to be better than the baseline."""
        if needed := self.estimate_budget():
            budget = f"the budget of {self.options.budget_s:g} s ended before the first variant"
            text = f"tried nothing: {budget}; these take about {needed} s: --budget {needed}s"
            self.save(best="", whole="", conclusion=text)
            return
        base, last = self.study[self.base], self.study.rounds[-1:]
        # The best of many earlier measurements would be one with luck.
        fits = [v for v in pick_best(self.study) if not last[0].last or v.name in last[0].variants]
        better = [v for v in fits if is_better(v, base, self.options.objective)]
        tried = sum(v.state == "measured" for v in self.study.variants) - 1
        untried = [v.name for v in self.study.variants if v.reason == NOT_TRIED]
        text = f"nothing helped: none of {tried} measured variants is better within the limits"
        (self.place / RECIPE).unlink(missing_ok=True)
        if better:
            best = better[0]
            text = f"{best.name}: {describe_variant(best)}"
            changes, above = [text], best
            while above.name != self.base:
                changes.insert(0, above.change)
                above = self.study[above.parent]
            facts = (self.study.model, best.options, best.threads, tuple(changes))
            save_recipe(Recipe(*facts, best.sha256, versions()), self.place / RECIPE)
        text += f"; {NOT_TRIED}: {', '.join(untried)}" if untried else ""
        self.save(best=better[0].name if better else "", whole=self.whole, conclusion=text)

    def estimate_budget(self) -> int:
        """Seconds in which all variants can be tried; 0 if one was, or there is none."""
        others = [v for v in self.study.variants if v.name != self.base]
        untried = [v for v in others if v.reason == NOT_TRIED]
        if not untried or len(untried) < len(others):
            return 0
        measured_s = sum(each.budget_s for each in self.study.rounds if each.run_dir)
        known_s = max(0.0, self.study.spent_s - measured_s) + self._export_s * len(untried)
        needed_s = max(known_s / (1 - 1.5 * FIRST - LATER), 1.5 * self.options.budget_s)
        return 10 * math.ceil(needed_s / 10)


def export_variant(
    job: tuple[str | LoadedModel, ExportOptions, Path, OptimizeOptions],
) -> dict[str, Any]:
    """Export a variant beside other work, never beside a measurement; what is known of it then."""
    model, export_options, root, options = job
    with share_machine():
        try:
            program = export_model(model, options=export_options, root=root, progress=silent)
            export = program.export
            assert export
            sqnr, score = score_program(model, export_options, program, options.metric)
        except WorkbenchError as error:
            return {"state": "failed", "reason": str(error)}
    layers = program.layers
    size = export.size_bytes / 1e6
    flaws = []
    if options.metric and (score is None or score < options.min_score):
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
        "planned_bytes": sum(layers.methods[0].arena_bytes) if layers else None,
        "sqnr_db": sqnr,
        "score": score,
    }
