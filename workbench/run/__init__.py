"""Plan a measurement and carry it out with a runner."""

from workbench.run.cache import cache_folder, keep
from workbench.run.ceilings import device_of, measure_ceilings
from workbench.run.config import complete_plan, output_place, plan_config, read_config
from workbench.run.doctor import examine_machine
from workbench.run.execute import find_run, run_plan
from workbench.run.finding import Finding
from workbench.run.isa import list_toggles, read_isa
from workbench.run.plan import check_toggle, make_plan
from workbench.run.processes import run_processes
from workbench.run.runner import KINDS as RUNNER_KINDS
from workbench.run.runner import Runner, find_runner, identify_runner
from workbench.run.target import Host
from workbench.run.targets import TARGETS, open_target

__all__ = [
    "RUNNER_KINDS",
    "TARGETS",
    "Finding",
    "Host",
    "Runner",
    "cache_folder",
    "check_toggle",
    "complete_plan",
    "device_of",
    "examine_machine",
    "find_run",
    "find_runner",
    "identify_runner",
    "keep",
    "list_toggles",
    "make_plan",
    "measure_ceilings",
    "open_target",
    "output_place",
    "plan_config",
    "read_config",
    "read_isa",
    "run_plan",
    "run_processes",
]
