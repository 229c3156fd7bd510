"""Copies without plug-ins: the core works without any, and each plug-in without each other one.

    python3 dev.py plugins [--seam] [core | NAME]...

From a copy without a plug-in, its folder, its tests, its page and its notebooks are deleted. In
every copy all tests are collected, which imports what they import, and toy_cnn is profiled, which
writes its report, and its explorer if that is there. With ``--seam``, of the tests only those of
documents and public names are run. Otherwise, in the copy without any, all fast tests pass, and in
that without a named one those of the others and of plug-ins in general. Without names, copies lack
several at once, so that for every two plug-ins there is a copy with one of them and without the
other. Two copies are tried at a time. Prints a table; exits 1 on failure.
"""

import itertools
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from needed import NOTEBOOKS

from workbench.plugin import list_plugins

ROOT = Path(__file__).resolve().parents[1]
CORE, SEAM = "core", "--seam"
TESTS = ("-m", "pytest", "-p", "no:cacheprovider")
OF_PLUGINS = ("tests/plugins", "tests/test_plugins.py")
#: All are collected; these have what links to plug-ins or lists them.
OF_SEAM = ("-k", "test_docs or test_documents or test_public_api or test_skills")
PROFILE = ("-m", "workbench", "profile", "toy_cnn", "--runs", "4", "--processes", "2")
WRITTEN = (
    "from pathlib import Path; from workbench.plugin import list_plugins;"
    "[run] = Path('out_toy_cnn/runs').iterdir(); names = {path.name for path in run.iterdir()};"
    "assert 'report.html' in names and ('explore.html' in names) == ('explorer' in list_plugins())"
)
#: What a copy does without: environments, caches, what was built.
HIDDEN = shutil.ignore_patterns(
    *(".git", ".venv", ".*_cache", ".hypothesis", "__pycache__", "build"),
    *("*.egg-info", "node_modules"),
)


def main(chosen: list[str]) -> int:
    seam = SEAM in chosen
    chosen = [name for name in chosen if name != SEAM]
    names = [CORE, *list_plugins()]
    if unknown := set(chosen) - set(names):
        print(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(names)}", file=sys.stderr)
        return 2
    print("| without | seconds | tests | result |\n| --- | ---: | ---: | --- |", flush=True)
    groups = [(name,) for name in chosen] or [(CORE,), *group_plugins(names[1:])]
    with ThreadPoolExecutor(2) as beside:
        return max(beside.map(partial(try_without, seam=seam), groups))


def group_plugins(names: list[str]) -> list[tuple[str, ...]]:
    """What each of a few copies lacks.

    Every plug-in is missing from another set of half of the copies. Of two sets of equal size, each
    has a copy that the other lacks (E. Sperner, 1928).
    """
    copies = next(n for n in itertools.count(1) if math.comb(n, n // 2) >= len(names))
    sets = itertools.combinations(range(copies), copies // 2)
    lacking = [list[str]() for _ in range(copies)]
    for name, numbers in zip(names, sets, strict=False):
        for number in numbers:
            lacking[number].append(name)
    return [tuple(group) for group in lacking if group]


def try_without(group: tuple[str, ...], seam: bool) -> int:
    """Try a copy without some plug-ins, or without any; returns whether that failed."""
    is_core = group == (CORE,)
    wanted = OF_SEAM if seam else () if is_core else OF_PLUGINS
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copytree(ROOT, Path(folder) / "copy", symlinks=True, ignore=HIDDEN))
        for plugin in list_plugins() if is_core else group:
            delete_plugin(copy, plugin)
        lines = [(*TESTS, *wanted), PROFILE, ("-c", WRITTEN)]
        runs = [run(copy, *line) for line in lines]
    failed = any(done.returncode for done in runs)
    passed = re.findall(r"(\d+) passed", runs[0].stdout) or ["0"]
    result = "failed" if failed else "passed"
    seconds = time.monotonic() - start
    print(f"| {', '.join(group)} | {seconds:.0f} | {passed[-1]} | {result} |", flush=True)
    if failed:
        print("".join(done.stdout[-6000:] + done.stderr[-2000:] for done in runs), file=sys.stderr)
    return int(failed)


def delete_plugin(copy: Path, name: str) -> None:
    """Delete what belongs to a plug-in."""
    shutil.rmtree(copy / "workbench" / "plugins" / name)
    shutil.rmtree(copy / "tests" / "plugins" / name)
    (copy / "data" / "docs" / "plugins" / f"{name}.md").unlink(missing_ok=True)
    for notebook, owner in NOTEBOOKS.items():
        if owner == name:
            (copy / "notebooks" / notebook).unlink()


def run(copy: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python on a copy; its measurements wait for no other's."""
    environment = {**os.environ, "PYTHONPATH": str(copy), "WORKBENCH_LOCKS": f"{copy}-locks"}
    line = [sys.executable, *arguments]
    return subprocess.run(line, cwd=copy, env=environment, capture_output=True, text=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
