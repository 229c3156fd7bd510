"""XNNPACK's rewrites of a delegate, replayed: which operators run for what was exported."""

from workbench.analyze.xnnpack.half import EVERYTHING
from workbench.analyze.xnnpack.operators import Operator, half_kinds, predict_operators

__all__ = ["EVERYTHING", "Operator", "half_kinds", "predict_operators"]
