"""Is the package thin? Counts what a reader has to know, beside the goals and the version before.

    python tests/benchmarks/size.py [--names] [--tests]

``--names`` lists names that several modules define, ``--tests`` the tests that import internals.
Moved, squeezed or generated lines would not help a reader, so look at what changed too. Exits 1 if
a goal is missed.
"""

import ast
import importlib.util
import re
import sys
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path

import grimp

import workbench as wb

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "workbench"

#: What is counted; as this script counts 68b0ec0, whose review found the same, but for floors: 14
#: (of rooms that import each other), and 2 methods in 1 module that import the whole package; and
#: the most that is allowed.
ROWS = {
    "lines of Python in workbench/": (33_115, 27_500),
    "files in workbench/": (166, None),
    "classes": (249, 150),
    "public names": (93, 60),
    "names defined in several modules": (27, 10),
    "the same with private names": (60, None),
    "floors (import-linter layers)": (16, 10),
    "circles between modules": (2, 0),
    "imports against the floors": (1, 0),
    "test files": (96, None),
    "test files that import internals": (89, None),
    "the same in per cent": (93, 30),
    "lines of tests without benchmarks": (28_127, 25_000),
}


def main() -> int:
    reached = dict(zip(ROWS, [*count_names(), *count_imports(), *count_tests()], strict=True))
    print(f"{'':36}{'68b0ec0':>10}{'goal':>10}{'now':>10}")
    missed = []
    for what, (before, most) in ROWS.items():
        now, goal = reached[what], "" if most is None else f"<= {most}"
        missed += [what] if most is not None and now > most else []
        print(f"{what:36}{before:>10}{goal:>10}{now:>10}{'  missed' * (what in missed[-1:])}")
    return int(bool(missed))


def count_names() -> tuple[int, ...]:
    """Lines, files, classes, public names, and names that several modules define."""
    sources = sorted(path for path in PACKAGE.rglob("*.py"))
    trees = [ast.parse(path.read_text()) for path in sources]
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    names = Counter(
        name for tree in trees for name in {node.name for node in tree.body if type(node) in kinds}
    )
    several = [name for name, count in names.items() if count > 1]
    if "--names" in sys.argv:
        print(*sorted(several), sep="\n")
    classes = sum(isinstance(node, ast.ClassDef) for tree in trees for node in ast.walk(tree))
    public = sum(not name.startswith("_") for name in several)
    lines = sum(len(path.read_text().splitlines()) for path in sources)
    return lines, len(sources), classes, len(wb.__all__), public, len(several)


def count_imports() -> tuple[int, ...]:
    """Floors, circles between modules, and imports upwards; imports inside functions count."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = next(c for c in contracts["contracts"] if c["type"] == "layers")["layers"]
    floors = {
        name: floor for floor, names in enumerate(layers) for name in re.findall(r"\w+", names)
    }
    graph = grimp.build_graph("workbench", cache_dir=None)
    upwards = 0
    for module in graph.modules - {"workbench"}:
        floor = floors[module.split(".")[1]]
        others = graph.find_modules_directly_imported_by(module) - {"workbench"}
        upwards += sum(floors[other.split(".")[1]] < floor for other in others)
        # Below the command line, the public names are above everything.
        upwards += floor > floors["cli"] and uses_public_names(module)
    return len(layers), len(find_circles(graph)), upwards


def uses_public_names(module: str) -> bool:
    """Whether a module uses the whole package: ``import workbench as wb; wb.compare``."""
    tree = ast.parse(Path(importlib.util.find_spec(module).origin).read_text())
    return any(
        node.attr in wb.__all__ and getattr(node.value, "id", "") in ("wb", "workbench")
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
    )


def find_circles(graph: grimp.ImportGraph) -> list[set[str]]:
    """Modules that import each other, directly or through others."""
    above = {m: graph.find_upstream_modules(m) for m in graph.modules}
    circles = {frozenset(n for n in above[m] if m in above[n]) | {m} for m in graph.modules}
    return [{*circle} for circle in circles if len(circle) > 1]


def count_tests() -> tuple[int, ...]:
    """Test files, those that import internals, their share, and lines of tests."""
    tests = sorted((ROOT / "tests").glob("test_*.py"))
    internal = [path for path in tests if imports_internals(path)]
    if "--tests" in sys.argv:
        print(*(path.name for path in internal), sep="\n")
    lines = sum(len(path.read_text().splitlines()) for path in (ROOT / "tests").glob("*.py"))
    return len(tests), len(internal), round(100 * len(internal) / len(tests)), lines


def imports_internals(path: Path) -> bool:
    """Whether a test imports more than ``workbench``, or names a module in a string."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import(names=names):
                named = [alias.name for alias in names]
            case ast.ImportFrom(module=str(module), level=0):
                named = [f"{module}.{alias.name}" for alias in node.names]
            case ast.Constant(value=str(text)):
                named = [text] if re.fullmatch(r"workbench(\.\w+)+", text) else []
            case ast.Attribute(value=ast.Name(id="wb"), attr=attribute):
                named = [f"workbench.{attribute}"]
            case _:
                continue
        if any(is_internal(name) for name in named):
            return True
    return False


@cache
def is_internal(name: str) -> bool:
    """Whether a dotted name is of a module below ``workbench``, or of something in it."""
    package, *parts = name.split(".")
    if package != "workbench" or not parts or (len(parts) == 1 and parts[0] in wb.__all__):
        return False
    return importlib.util.find_spec(f"workbench.{parts[0]}") is not None


if __name__ == "__main__":
    sys.exit(main())
