"""What strangers' files, killed drivers and damaged caches can do: attack, tries, result.

    python tests/benchmarks/attacks.py

Runs the tests of each attack and prints a table. Exits 1 if one succeeded.
"""

import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]
#: The attack, and the test that tries it.
ATTACKS = {
    "manifest: a name that leads outside of the run": "cannot_lead_outside",
    "manifest: a trace is missing": "traced_process_without_a_trace",
    "manifest: code of its own as the model": "runs_no_code",
    "manifest: a host of its own as the target": "host_is_contacted_only",
    "sidecar: an operator or tensor that it lacks": "refers_only_to_what_it_has",
    "JSON: deep, many objects, numbers of 400 digits": "fail_deep_inside",
    "JSON: a long list of bad records": "stops_at_the_first_bad_element",
    "peaks that are no numbers": "peaks_that_cannot_be",
    "ETDump: names that collide under fixed weights": "collide_under_fixed_weights",
    "small file, much memory (.pt, PNG, ETRecord, ETDump)": "takes_little_memory",
    "a pipe in place of a file": "a_pipe_is_refused",
    "object store: a key with ..": "cannot_place_files_elsewhere",
    "config: names too long for a file": "too_long_for_a_file",
    "time-outs that never end": "timeout_is_a_positive_number",
    "runner: an empty trace": "empty_trace_is_noticed",
    "runner: an endless log": "log_is_cut_while_it_is_written",
    "runner: processes left behind": "leaves_behind_is_killed",
    "driver killed while a runner runs": "driver_is_killed",
    "driver gets SIGTERM": "sigterm_ends",
    "cache: truncated, garbage, of another user": "damaged_cache or cache_of_another_user",
    "program: a delegate without a backend": "delegate_without_a_backend",
    "wheel of an unknown hash": "without_a_known_hash",
    "lock: link, hard link, pipe, folder, garbage": "lock_that_others_prepared",
    "lock: latecomers, a clock that jumps back": "first_is_served_first",
    "ten identical commands at once": "ten_identical",
    "notebook server: no token, another host": "jupyterlab_answers",
    "links and control characters in Markdown, HTML": "text_in_markdown or no_control_characters",
    "formulas and control characters in CSV, traces, terminal": "traces_and_progress_lines",
    "mutants of each kind of file": "mutants_are_read_or_refused",
}
FILES = ("hostile", "config", "locks", "store", "runner_protocol", "bundle", "fuzz")


def main() -> int:
    cases = run_tests(" or ".join(ATTACKS.values()))
    print("| attack | tries | result |\n| --- | ---: | --- |")
    failed = 0
    for attack, expression in ATTACKS.items():
        words = expression.split(" or ")
        ends = Counter(end for name, end in cases if any(word in name for word in words))
        bad = ends.total() - ends["passed"] - ends["skipped"]
        failed += bad or not ends["passed"]
        result = f"{bad} succeeded" if bad else "refused" if ends["passed"] else "not tried"
        print(f"| {attack} | {ends.total()} | {result} |")
    return bool(failed)


def run_tests(expression: str) -> list[tuple[str, str]]:
    """The names of the tests that match, and whether they passed, failed or were skipped."""
    files = [f"tests/test_{name}.py" for name in FILES]
    with tempfile.NamedTemporaryFile(suffix=".xml") as report:
        command = [sys.executable, "-m", "pytest", "-q", *files, "-k", expression]
        command += [f"--junitxml={report.name}", "-m", "not browser"]
        subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=False)
        cases = ElementTree.parse(report.name).iter("testcase")
        return [(c.get("name", ""), next((e.tag for e in c), "passed")) for c in cases]


if __name__ == "__main__":
    sys.exit(main())
