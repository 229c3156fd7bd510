"""Speed-ups and their intervals, which hold for few process restarts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtr, stdtrit

from workbench.analysis.statistics import CHUNK, DRAWS, midmean

_Restarts = Sequence[np.ndarray]


@dataclass(frozen=True)
class Speedup:
    """Speed-ups (baseline / candidate), one per quantity.

    ``log`` holds their logarithms, ``error`` the standard errors of these (NaN where the data allow
    none), ``freedom`` the degrees of freedom of the errors.
    """

    log: np.ndarray
    error: np.ndarray
    freedom: np.ndarray

    @property
    def value(self) -> np.ndarray:
        """The speed-ups."""
        return np.exp(self.log)

    @property
    def low(self) -> np.ndarray:
        """The lower ends of their 95 % intervals, by Student's t."""
        return np.exp(self.log - self._quantile(0.975))

    @property
    def high(self) -> np.ndarray:
        """The upper ends of their 95 % intervals."""
        return np.exp(self.log + self._quantile(0.975))

    @property
    def p(self) -> np.ndarray:
        """The two-sided p-values of "no difference"; below 0.05 the interval excludes 1."""
        with np.errstate(divide="ignore", invalid="ignore"):
            distance = np.where(self.log == 0, 0.0, np.abs(self.log) / self.error)
        return 2 * stdtr(self.freedom, -distance)

    def minimum_detectable_change(self, floor: np.ndarray | float = 0.0) -> np.ndarray:
        """The least difference, as a ratio - 1, that 4 of 5 repetitions would show.

        The multiple of the standard error is that of H. S. Bloom, "Minimum Detectable Effects",
        Evaluation Review 19 (1995).
        """
        least = np.maximum(self._quantile(0.975), np.log1p(floor))
        return np.expm1(least + self._quantile(0.8))

    def _quantile(self, level: float) -> np.ndarray:
        return stdtrit(self.freedom, level) * self.error


def speedup_of_pairs(baseline: _Restarts, candidate: _Restarts) -> Speedup:
    """The speed-up from rounds in which both were measured side by side.

    Each side has one array per restart, of shape ``(rounds,)`` or ``(rounds, quantities)``. Each
    restart gives one logarithm of a ratio, the midmean over its rounds; the interval is Student's
    over the restarts. It holds whatever the rounds of one restart have in common (addresses,
    caches, clock speed), even if restarts scatter unequally (S. G. Donald, K. Lang, "Inference with
    Difference-in-Differences and Other Panel Data", Rev. Econ. Stat. 89 (2007); R. Ibragimov, U. K.
    Müller, "t-Statistic Based Correlation and Heterogeneity Robust Inference", J. Bus. Econ. Stat.
    28 (2010)). A hierarchical bootstrap over restarts and rounds does not: for 3 to 20 simulated
    restarts Student's interval covered 94 to 96 % and the bootstrap's 82 to 100 %, instead of 95 %
    (``tests/benchmarks/intervals.py``). With a single restart, the error is the bootstrap's over
    its rounds, without the scatter between restarts.
    """
    pairs = zip(baseline, candidate, strict=True)
    ratios = [np.log(_columns(before) / _columns(after)) for before, after in pairs]
    if len(ratios) == 1:
        error = _bootstrap_error(ratios[0], midmean)
        return _speedup_of_one_restart(midmean(ratios[0]), error, ratios[0])
    return _speedup_of_restarts(np.array([midmean(ratio) for ratio in ratios]))


def speedup_of_runs(
    baseline: _Restarts, candidate: _Restarts, *, resolution: np.ndarray | float = 0.0
) -> Speedup:
    """The speed-up from the same restarts, in which the sides were not measured side by side.

    As `speedup_of_pairs`, but with the ratio of the midmeans of each restart; NaN where one is
    zero. ``resolution`` is the standard error that more runs do not reduce: that of the clock.
    """
    before, after = (_log_restarts(side) for side in (baseline, candidate))
    if len(before) > 1:
        return _speedup_of_restarts(before - after, resolution)
    error = np.hypot(
        _bootstrap_error(_columns(baseline[0]), _log_midmean),
        _bootstrap_error(_columns(candidate[0]), _log_midmean, seed=1),
    )
    log, error = (before - after)[0], np.hypot(error, resolution)
    return _speedup_of_one_restart(log, error, baseline[0])


def speedup_apart(
    baseline: _Restarts, candidate: _Restarts, *, resolution: np.ndarray | float = 0.0
) -> Speedup:
    """The speed-up between different restarts, by Welch's t; no error for a single restart."""
    sides = [_log_restarts(side) for side in (baseline, candidate)]
    log = sides[0].mean(axis=0) - sides[1].mean(axis=0)
    if min(map(len, sides)) < 2:
        return Speedup(log, log * np.nan, np.ones_like(log))
    parts = [(side.var(axis=0, ddof=1) / len(side), len(side) - 1) for side in sides]
    return Speedup(log, *_join_errors(*parts, (np.square(resolution), np.inf)))


def _log_restarts(side: _Restarts) -> np.ndarray:
    return np.array([_log_midmean(_columns(values)) for values in side])


def _speedup_of_restarts(logs: np.ndarray, resolution: np.ndarray | float = 0.0) -> Speedup:
    restarts = len(logs)
    scatter = logs.var(axis=0, ddof=1) / restarts
    errors = _join_errors((scatter, restarts - 1), (np.square(resolution), np.inf))
    return Speedup(logs.mean(axis=0), *errors)


def _speedup_of_one_restart(log: np.ndarray, error: np.ndarray, rows: np.ndarray) -> Speedup:
    return Speedup(log, error, np.full(log.shape, max(len(rows) - 1, 1), float))


def _join_errors(*parts: tuple[np.ndarray | float, float]) -> tuple[np.ndarray, np.ndarray]:
    """Standard error and degrees of freedom of a sum of variances with degrees of freedom.

    After F. E. Satterthwaite, "An Approximate Distribution of Estimates of Variance Components",
    Biometrics Bulletin 2 (1946).
    """
    total = sum(np.asarray(variance, float) for variance, _ in parts)
    spread = sum(np.square(variance) / freedom for variance, freedom in parts)
    least = min(freedom for _, freedom in parts)
    with np.errstate(divide="ignore", invalid="ignore"):
        freedom = np.where(total > 0, np.square(total) / spread, least)
    # Student's t of a million degrees of freedom is normal; that of infinitely many is NaN.
    return np.sqrt(total), np.minimum(freedom, 1e6)


def _columns(values: np.ndarray) -> np.ndarray:
    values = np.asarray(values, dtype=float)
    return values[:, None] if values.ndim == 1 else values


def _log_midmean(values: np.ndarray, axis: int = 0) -> np.ndarray:
    typical = midmean(values, axis)
    return np.log(np.where(typical > 0, typical, np.nan))


def _bootstrap_error(
    values: np.ndarray, statistic: Callable[..., np.ndarray], seed: int = 0
) -> np.ndarray:
    rows, quantities = values.shape
    if rows < 2:
        return np.full(quantities, np.nan)
    rng = np.random.default_rng(seed)
    step = max(1, CHUNK // values.size)
    draws = [
        statistic(values[rng.integers(0, rows, (min(step, DRAWS - done), rows))], axis=1)
        for done in range(0, DRAWS, step)
    ]
    return np.concatenate(draws).std(axis=0, ddof=1)
