"""What strangers' files, killed drivers and damaged caches can do: attack, tries, result.

    python tests/benchmarks/attacks.py

Runs the tests of each attack and prints a table. Exits 1 if one succeeded.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
#: The attack, and what the names of the tests that try it contain; ``attacks.json`` in the folder
#: of a plug-in's tests has those that its tests try.
ATTACKS = {
    "manifest: a name that leads outside of the run": "cannot_lead_outside",
    "manifest: a trace is missing": "traced_process_without_a_trace",
    "manifest: a host of its own as the target": "no_host_is_contacted",
    "sidecar: an operator or tensor that it lacks": "refers_only_to_what_it_has",
    "JSON: deep, many objects, numbers of 400 digits": "fail_deep_inside",
    "peaks that are no numbers": "peaks_that_cannot_be",
    "small file, much memory; ten million events": "takes_little_memory",
    "a pipe in place of a file": "a_pipe_is_refused",
    "config: names too long for a file": "too_long_for_a_file",
    "time-outs that never end": "timeout_is_a_positive_number",
    "runner: a damaged or missing trace": "a_bad_trace or traced_process_without_a_trace",
    "driver killed while a runner runs": "killing_the_driver",
    "report gets SIGKILL, SIGINT": "report_that_is_ended",
    "cache: of another user": "cache_of_another_user",
    "folders that may only be read": "cannot_be_written",
    "model: leaves the folder, prints": "disturbs_neither or moves_no_notebook",
    "model: functions of PyTorch that it breaks": "broken_function_of_torch",
    "model: on a device without memory": "model_on_another_device",
    "standard output that is full": "full_stream_is_one_line",
    "a folder of another encoding": "another_encoding",
    "two exports of one program at once": "two_exports_at_once or with_other_bytes_is_noticed",
    "report: files that cannot be written": "not_written_are_said_last",
    "report: malformed and empty notebooks": "malformed_notebook or displays_nothing",
    "report: a kernel that dies at its start": "kernel_that_dies",
    "ETRecord: empty, broken, of another program": "record_of_another_program or gives_no_layers",
    "no compiler, no pip of its own": "pip_may_be_a_module or runs_no_programs_is_refused",
    "threads: overlapping loads": "overlapping_loads or without_code_between_fork_and_exec",
    "set-up: an environment behind a link": "environment_behind_a_link",
    "program: a delegate without a backend": "delegate_without_a_backend",
    "two measurements at once": "concurrent_runs_are_serialised",
    "notebook server: no token, another host": "jupyterlab_answers or there_is_no_page",
    "notebook server: paths outside, bodies": "other_files_are_refused or asks_for_no_file",
    "links and control characters in Markdown, HTML": "text_in_markdown or no_control_characters",
    "control characters in progress": "prints_no_control",
    "mutants of each kind of file": "mutants_are_read_or_refused",
}


def main() -> int:
    argparse.ArgumentParser(description=__doc__).parse_args()
    tests = find_tests()
    cases = run_tests({test for found in tests.values() for test in found})
    print("| attack | tries | result |\n| --- | ---: | --- |")
    failed = 0
    for attack, found in tests.items():
        # If a whole file is skipped, its name is the test's.
        files = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path, _ in found}
        names = files | {name for _, name in found}
        ends = [(end, why) for name, end, why in cases if name.partition("[")[0] in names]
        result = describe_ends(ends)
        failed += not result.startswith("refused")
        print(f"| {attack} | {len(ends)} | {result} |")
    return bool(failed)


def describe_ends(ends: list[tuple[str, str]]) -> str:
    """The result of an attack whose tests ended so; names what was not tried, and why."""
    count = Counter(end for end, _ in ends)
    bad = len(ends) - count["passed"] - count["skipped"]
    result = f"{bad} succeeded" if bad else "refused" if count["passed"] else ""
    if skipped := count["skipped"]:
        why = "; ".join(dict.fromkeys(reason for end, reason in ends if end == "skipped"))
        result += f"{'; ' if result else ''}{skipped} of {len(ends)} not tried: {why}"
    return result


def find_tests() -> dict[str, list[tuple[Path, str]]]:
    """The file and name of every test of each attack."""
    tests = {}
    for folder in (TESTS, *sorted(TESTS.glob("plugins/*/"))):
        table = folder / "attacks.json"
        attacks = json.loads(table.read_text()) if table.exists() else {}
        named = [
            (path, name)
            for path in sorted(folder.glob("test_*.py"))
            for name in re.findall(r"^def (test_\w+)", path.read_text(), re.M)
        ]
        for attack, words in (ATTACKS if folder == TESTS else attacks).items():
            tests[attack] = [t for t in named if any(word in t[1] for word in words.split(" or "))]
    return tests


def run_tests(tests: set[tuple[Path, str]]) -> list[tuple[str, str, str]]:
    """The names of the cases of tests, whether they passed, failed or were skipped, and why."""
    with tempfile.NamedTemporaryFile(suffix=".xml") as report:
        files, expression = sorted({path for path, _ in tests}), " or ".join(n for _, n in tests)
        command = [sys.executable, "-m", "pytest", "-q", *files, "-k", expression]
        command += [f"--junitxml={report.name}", "-m", "not browser"]
        subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=False)
        cases = ElementTree.parse(report.name).iter("testcase")
        ends = [(c.get("name", ""), next(iter(c), None)) for c in cases]
        return [
            (name, "passed", "") if end is None else (name, end.tag, end.get("message", ""))
            for name, end in ends
        ]


if __name__ == "__main__":
    sys.exit(main())
