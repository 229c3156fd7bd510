"""Plan a measurement and carry it out with a runner."""

from workbench.run.doctor import Finding, examine_machine
from workbench.run.execute import run_plan
from workbench.run.isa import read_isa
from workbench.run.plan import make_plan
from workbench.run.runner import Runner, find_runner

__all__ = [
    "Finding",
    "Runner",
    "examine_machine",
    "find_runner",
    "make_plan",
    "read_isa",
    "run_plan",
]
