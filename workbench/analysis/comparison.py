"""A comparison of two measurements: speed-ups, verdicts, and what weakens them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pandas as pd

from workbench import emulation, wording
from workbench.analysis import (
    comparison_tables,
    dtypes,
    layers,
    machine_code,
    quality,
    shift,
    statistics,
)
from workbench.analysis.layers import Traced
from workbench.analysis.measurement import Measurement
from workbench.analysis.noun import Noun
from workbench.analysis.quality import Row
from workbench.analysis.resources import compare_resources
from workbench.analysis.use import Use, describe_use
from workbench.analysis.verdict import (
    UNKNOWN,
    Verdict,
    describe_difference,
    describe_faults,
    reach_verdict,
)
from workbench.emulation import frame_property
from workbench.records.exports import contrast_models
from workbench.records.pairing import find_control
from workbench.records.runs import LADDER_TOGGLE, Agreement, Proof
from workbench.shown import draw_page

if TYPE_CHECKING:
    from workbench.analysis.run import Run

#: How far shares may be off, as a part of the whole, without a verdict saying so.
SAID_POINTS = 0.02


def _name_largest(parts: Sequence[tuple[str, float]]) -> str:
    """``Convolution 54 % or Data Movement 29 %``."""
    return " or ".join(f"{name} {wording.format_share(share)}" for name, share in parts)


@dataclass(frozen=True)
class Comparison(Noun):
    """A candidate against its baseline.

    Two measurements of one run at one thread count were interleaved; others were measured apart.
    ``label`` says what the candidate does differently, ``subject`` what was run.

    Examples
    --------
    >>> ab = wb.open_run(wb.sample_run()).compare()
    >>> ab.categories["name"].tolist()[:2]
    ['Convolution', 'GEMM']
    >>> ab.speedups.loc[0, "name"]
    'E2E'
    """

    baseline: Measurement
    candidate: Measurement
    label: str = ""
    subject: str = ""
    #: The outcome where outputs differ.
    WRONG: ClassVar[str] = emulation.WRONG

    def __repr__(self) -> str:
        return f"Comparison({self.text!r})"

    def _repr_html_(self) -> str:
        return draw_page(self)

    def explain(self, parts: pd.DataFrame) -> list[str]:
        """Why inconclusive parts (``frames.COMPARISON``) whose interval excludes 1 show nothing."""
        return comparison_tables.explain_outcomes(parts)

    @property
    def run(self) -> Run:
        """The run of the candidate."""
        return self.candidate.run

    @property
    def emulated(self) -> bool:
        """Whether a side's times mean nothing."""
        return self.baseline.emulated or self.candidate.emulated

    @cached_property
    def wrong(self) -> str:
        """Why no speed-up can be claimed: wrong outputs of a side, or different ones of both."""
        faults = describe_faults(self.candidate.wrong, self.baseline.wrong)
        judged = [a for a in self.agreements if not (self.models or a.note or a.agree)]
        texts = "; ".join(map(describe_difference, judged))
        return faults or (texts and f"outputs differ ({texts})")

    @property
    def programs(self) -> str:
        """Caveats of comparing two programs; empty if they differ in speed alone.

        Whether they are of two models, and the SQNR and size of different dtypes. Against another
        runtime, whether the outputs agree.
        """
        if self.baseline.runtime:
            return self._describe_outputs()
        texts = [self.models] if self.models else []
        sides = [side for side in (self.candidate, self.baseline) if side.export]
        if len({side.export.dtype for side in sides if side.export}) > 1:
            texts += [dtypes.describe_fidelity(side.export, side.dtypes) for side in sides]
        return "; ".join(texts)

    def _describe_outputs(self) -> str:
        """Whether the outputs of both sides were compared, and are the same."""
        judged = [a for a in self.agreements if not a.note]
        if not judged:
            return "outputs not compared"
        if all(a.agree for a in judged):
            return "same outputs"
        return "; ".join(filter(None, ["other outputs", self.models]))

    @property
    def within_run(self) -> bool:
        """Whether both sides are of one run."""
        return self.baseline.run.path.resolve() == self.candidate.run.path.resolve()

    @property
    def apart(self) -> bool:
        """Whether nothing shows that the restarts of both sides alternated."""
        return not self.within_run or self.run.recording is not None

    @property
    def separation(self) -> str:
        """In words, how both sides were measured apart; empty if they were not."""
        if not self.within_run:
            return "separate runs"
        single = max(len(m.sessions) for m in (self.baseline, self.candidate)) == 1
        one = ", one process each" if single else ""
        return f"measured apart{one}" if self.apart else ""

    @property
    def threads_text(self) -> str:
        """``1 thread``, or ``4 threads against 1``."""
        before, after = self.baseline.threads, self.candidate.threads
        return wording.plural(after, "thread") + ("" if before == after else f" against {before}")

    @property
    def toggled(self) -> bool:
        """Whether the two sides hide different CPU features."""
        return self.baseline.experiment.isa != self.candidate.experiment.isa

    @property
    def same_program(self) -> bool:
        """Whether both sides ran one program."""
        return self.baseline.program.sha256 == self.candidate.program.sha256

    @property
    def toggle(self) -> str:
        """The CPU extension whose effect is measured, ``none``, or empty."""
        return self.run.record.plan.toggle if self.same_program else "none"

    @property
    def models(self) -> str:
        """What speaks against both sides being of one model; empty if their outputs must agree."""
        within_recording = self.within_run and self.same_program
        sides = self.baseline.identity, self.candidate.identity
        return "" if within_recording else contrast_models(*sides)

    @property
    def agreements(self) -> list[Agreement]:
        """How far the outputs of both sides are apart."""
        sides = (self.baseline.name, self.candidate.name, self.candidate.threads)
        agreements = self.run.record.agreements if self.within_run else ()
        return [a for a in agreements if (a.baseline, a.candidate, a.threads) == sides]

    @cached_property
    def _controls(self) -> dict[str, Measurement]:
        """A control of the baseline's program and what it repeats, which show the noise."""
        names = map(str, find_control(self.run.record.plan, self.baseline.name))
        traced = {m.name: m for m in self.run.traced if m.threads == self.candidate.threads}
        equals = [traced[name] for name in names if name in traced]
        if self.apart or len(equals) < 2 or equals[0].program.name != self.baseline.program.name:
            return {}
        return dict(zip(("control_of", "control"), equals, strict=True))

    @cached_property
    def keys(self) -> dict[str, str]:
        """The baseline's keys of the candidate's operators, where these are of another program."""
        both = self.baseline.sidecar and self.candidate.sidecar
        return {} if self.same_program or not both else layers.match_operators(*self._traced)

    def rekey(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Rows of the candidate's operators, with the baseline's keys where the two are paired."""
        keys = rows["key"] if self.same_program else [self._key(key) for key in rows["key"]]
        return rows.assign(key=keys)

    @property
    def _traced(self) -> tuple[Traced, Traced]:
        before, after = ((m.ledger, m.operators) for m in (self.baseline, self.candidate))
        return before, after

    @frame_property
    def latency(self) -> pd.DataFrame:
        """E2E latency, one row of ``frames.COMPARISON``."""
        same_threads = self.baseline.threads == self.candidate.threads
        noise = self._controls.values() if same_threads else ()
        sides = [self.baseline, self.candidate, *noise]
        # One clock for all: wall time as soon as one side has several threads.
        clock = max(side.clock for side in sides)
        before, after, *control = (
            side.restarts
            if side.clock == clock
            else statistics.restart_latencies(side.latencies, clock)
            for side in sides
        )
        return comparison_tables.compare_restarts(
            [self.candidate.name], [before], [after], control=control, separate=self.apart
        )

    @frame_property
    def categories(self) -> pd.DataFrame:
        """Time of every category: ``frames.COMPARISON``."""
        return self.compare_by("category")

    @frame_property
    def operators(self) -> pd.DataFrame:
        """Time of every operator, the largest change first: ``frames.COMPARISON``.

        Operators of different programs are paired by layer, kind, shapes and cost in order of
        execution; ``candidate_key`` is the candidate's.
        """
        if self.same_program:
            compared = self.compare_by("operator")
            return compared.assign(
                candidate_key=compared["key"].where(compared["candidate_ms"].notna())
            )
        theirs = {key: self._key(key) for key in self.candidate.operators["key"]}
        compared = self.compare_by("operator", after=theirs)
        candidate_keys = {key: name for name, key in theirs.items()}
        return compared.assign(candidate_key=compared["key"].map(candidate_keys))

    @frame_property
    def layers(self) -> pd.DataFrame | None:
        """Own time of every layer, the largest change first: ``frames.COMPARISON``.

        Against another runtime, ``differs`` says what ExecuTorch does otherwise.
        """
        if not (self.baseline.has_layers and self.candidate.has_layers):
            return None
        if self.same_program:
            return self.compare_by("layer")
        compared = self.compare_by("layer", **self._aligned)
        if not self.baseline.runtime:
            return compared
        return compared.assign(differs=compared["name"].map(self._list_differences()))

    @cached_property
    def _aligned(self) -> dict[str, dict[str, str]]:
        """The common names of the layers ``before`` and ``after``."""
        return layers.align_layers(dict(zip(("before", "after"), self._traced, strict=True)))[1]

    @cached_property
    def _operators_of_layers(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """The operators of both sides without overhead, and in ``layer`` its common name."""
        theirs, ours = (
            m.operators[m.operators["role"] != "overhead"].assign(
                layer=lambda rows, names=names: rows["module"].map(layers.name_layer).map(names)
            )
            for m, names in zip(
                (self.baseline, self.candidate), self._aligned.values(), strict=True
            )
        )
        return theirs, ours

    def operators_of(self, names: Collection[str]) -> tuple[str, ...]:
        """Keys of the candidate's operators in the layers of these names, as in ``layers``."""
        ours = self._operators_of_layers[1]
        return tuple(ours.loc[ours["layer"].isin(names), "key"])

    def _list_differences(self) -> dict[str, str]:
        """What ExecuTorch does otherwise than the other runtime in each layer, by common names."""
        theirs, ours = self._operators_of_layers
        dtypes = [m.export.dtype if m.export else "" for m in (self.candidate, self.baseline)]
        other = f"{dtypes[0]} instead of {dtypes[1]}" if all(dtypes) else ""
        texts = {}
        for layer, rows in ours.groupby("layer"):
            kernels = rows.loc[rows["kind"] == "portable", "operator"].unique()
            outside = [name.removeprefix("native_call_").partition(".")[0] for name in kernels]
            number = int((theirs["layer"] == layer).sum())
            differences = [other] if other and dtypes[0] != dtypes[1] else []
            differences += [f"not delegated: {', '.join(outside)}"] if outside else []
            differences += ["layout conversion"] if (rows["role"] == "layout").any() else []
            if 0 < number != len(rows):
                noun = "operators" if len(rows) > 1 else "operator"
                differences.append(f"{len(rows)} {noun} instead of {number}")
            texts[str(layer)] = "; ".join(differences) or "other kernels"
        return texts

    @frame_property
    def kinds(self) -> pd.DataFrame:
        """Time in the delegate, in portable kernels and in overhead: ``frames.COMPARISON``."""
        return self.compare_by("kind")

    @property
    def speedups(self) -> pd.DataFrame:
        """E2E and every category: ``frames.COMPARISON``."""
        return pd.concat([self.latency.assign(name="E2E"), self.categories], ignore_index=True)

    @frame_property
    def resources(self) -> pd.DataFrame:
        """Latency, starts, memory and size of both sides: ``frames.RESOURCE_CHANGES``.

        The size only if the programs differ.
        """
        exports = [side.export for side in (self.baseline, self.candidate)]
        sizes = [e.size_bytes for e in exports if e and not self.same_program]
        starts = self.baseline.starts, self.candidate.starts
        latency = None if self.emulated else self.latency
        return compare_resources(*starts, latency, sizes, separate=self.apart)

    @frame_property
    def shift(self) -> pd.DataFrame:
        """How the bottleneck moves: ``frames.SHIFT``."""
        before, after = self.baseline, self.candidate
        ledgers = None if self.apart else (before.times.scaled, after.times.scaled)
        return shift.bottleneck_shift(before.categories, after.categories, ledgers)

    @frame_property
    def kernels(self) -> pd.DataFrame | None:
        """The microkernel of every operator on both sides: ``frames.KERNEL_EVIDENCE``."""
        before, after = self.baseline.machine_code, self.candidate.machine_code
        if before is None or after is None:
            return None
        return machine_code.compare_evidence(before, self.rekey(after))

    @cached_property
    def proof(self) -> Proof | None:
        """Whether both sides ran the same machine code; None where it was not sampled."""
        before, after = self.baseline.machine_code, self.candidate.machine_code
        return None if before is None or after is None else machine_code.prove_change(before, after)

    @cached_property
    def verdict(self) -> Verdict:
        """What the comparison showed."""
        unchanged = ""
        if self.proof and self.proof.outcome == "same" and self.toggled:
            hidden = self.run.masked(self.baseline.name) ^ self.run.masked(self.candidate.name)
            dtype = self.candidate.export.dtype if self.candidate.export else ""
            unchanged = machine_code.explain_unchanged(
                self.proof, hidden, self.baseline.times.scaled, dtype
            )
        subject, label = self.subject or self.candidate.program.model, self.label
        named = self.within_run and self.baseline.program != self.candidate.program
        if self.baseline.runtime and not self.subject:
            subject, label = f"{subject}, ExecuTorch against {self.baseline.runtime}", ""
        elif named and not self.subject:
            subject, label = f"{self.candidate.label} against {self.baseline.label}", ""
        ends = pd.concat(
            [side.statistics[["low", "high"]] for side in (self.baseline, self.candidate)]
        )
        verdict = reach_verdict(
            subject, label, self.latency, emulated=self.emulated, wrong=self.wrong,
            programs=self.programs, same_code=unchanged, separate=self.separation,
            paired=not self.apart and bool(ends["low"].max() <= ends["high"].min()),
            busy=any(use.busy for use in self.uses),
        )  # fmt: skip
        if self.baseline.opaque or self.wrong or self.emulated:
            return verdict
        return replace(verdict, bottleneck=self._describe_bottleneck(verdict.outcome))

    def _describe_bottleneck(self, outcome: str) -> str:
        """The largest category of both sides, and its share of E2E; empty without a trace."""
        if any(use.blank for use in self.uses):
            return UNKNOWN
        traced = self.baseline.sessions and self.candidate.sessions
        if not traced or any("shares" not in use.uses for use in self.uses):
            return ""
        error = np.nanmax([0.0, self.baseline.share_error, self.candidate.share_error])
        off = f" ± {100 * error:.0f} points" if error > SAID_POINTS else ""
        sides = (self.baseline.largest, self.candidate.largest)
        if self.baseline.runtime:
            before, after = map(_name_largest, sides)
            return f"{after} ({self.baseline.runtime}: {before}){off}"
        names, shares = zip(*(zip(*side, strict=True) for side in sides), strict=True)
        if names[0] != names[1]:
            return f"{' -> '.join(map(_name_largest, sides))}{off}"
        if outcome in ("unchanged", "inconclusive"):
            return f"{_name_largest(sides[0])}{off}"
        was, now = (" or ".join(map(wording.format_share, side)) for side in shares)
        return f"still {' or '.join(names[0])}, {was} -> {now}{off}"

    @property
    def checks(self) -> list[Row]:
        """Whether the toggle took effect, and the outputs agree: rows of the run's checks."""
        before, after = self.baseline, self.candidate
        name, rows = f"{after.name} against {before.name}, {self.threads_text}", []
        if before.program == after.program:
            rows = [(f"toggle took effect in {name}", *self._check_toggle())]
        elif self.same_program:
            evidence = "both files have the same content (SHA-256)"
            rows = [(f"programs differ in {name}", "note", evidence)]
        threads = wording.plural(after.threads, "thread")
        outputs = f"outputs of {after.name} and {before.name} agree, {threads}"
        return [
            *rows,
            (outputs, *quality.check_outputs(self.agreements, self.models)),
        ]

    def _check_toggle(self) -> tuple[str, str]:
        run, before, after = self.run, self.baseline, self.candidate
        both = self.operators.dropna(subset=["candidate_ms", "baseline_ms"])
        renamed = int((both["name"] != both["candidate_name"]).sum())
        if run.recording:
            if renamed:
                return "ok", f"{wording.plural(renamed, 'operator')} with another kernel"
            return "note", "not shown: no operator logs another kernel"
        if not self.toggled:
            return "ok", "none wanted: both sides are the same"
        hidden = run.masked(before.name) - run.masked(after.name)
        if hidden and self.verdict.same_code:
            # A ladder of ISA levels is measured to find those that bring nothing.
            status = "note" if run.record.plan.toggle == LADDER_TOGGLE else "fail"
            return status, f"no: {self.verdict.same_code}"
        return quality.check_toggle_effect(
            hidden, renamed, self.proof, machine_code.explain_lack(run.record)
        )

    @property
    def text(self) -> str:
        """The verdict in one line."""
        return self.verdict.text

    @property
    def uses(self) -> tuple[Use, Use]:
        """What may be used of the candidate and of the baseline, by names that differ."""
        sides = self.candidate, self.baseline
        if self.candidate.label != self.baseline.label:
            return self.candidate.use, self.baseline.use
        names = [
            side.run.label or (side.run.path.name if self.same_program else side.program.stem)
            for side in sides
        ]
        after, before = (m.use._replace(label=n) for m, n in zip(sides, names, strict=True))
        return after, before

    @property
    def caveats(self) -> list[str]:
        """What weakens the verdict."""
        caveats = [emulation.EMULATED] if self.emulated else describe_use(self.uses)
        caveats += self.verdict.objections
        if not self.within_run:
            what = "the interval does not cover what changed on the machine in between"
            offer = "wb.profile([before, after]) measures both side by side"
            caveats.append(f"measured apart: {what}; {offer}")
        sides = [self.candidate] if self.same_program else [self.candidate, self.baseline]
        return list(dict.fromkeys([*caveats, *chain.from_iterable(map(self._defects_of, sides))]))

    def _defects_of(self, side: Measurement) -> list[str]:
        """The defects of a side; they name its program where the label is that of both."""
        if self.same_program or self.baseline.label != self.candidate.label:
            return side.defects
        texts = (text.replace(f" of {side.label}: ", ": ") for text in side.defects)
        return [f"{side.program.stem}: {text}" for text in texts]

    def _key(self, key: str) -> str:
        """A candidate's key where the two sides are paired; marked if the baseline lacks it."""
        return self.keys.get(key) or f"{key} ({self.candidate.name})"

    def compare_by(
        self, level: str, before: Mapping[str, str] = {}, after: Mapping[str, str] = {}
    ) -> pd.DataFrame:
        """Compare the parts of both sides, by other names if given."""
        ours, theirs = (m.traced_rows(level) for m in (self.baseline, self.candidate))
        noise = {side: m.traced_rows(level) for side, m in self._controls.items()}
        if after:
            column = "key" if level == "operator" else level
            ours, theirs = layers.rename(ours, column, before), layers.rename(theirs, column, after)
            noise = {side: layers.rename(ledger, column, before) for side, ledger in noise.items()}
        whole = self.latency[["baseline_ms", "candidate_ms"]].iloc[0].to_list()
        # Tracing slows runtimes by different parts of their time.
        runtimes = [self.baseline, self.candidate] if self.baseline.runtime else []
        restarts = [side.restarts for side in runtimes]
        return comparison_tables.compare_parts(
            level, ours, theirs, whole, restarts_ms=restarts, apart=self.apart, **noise
        )
