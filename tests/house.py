"""How large and how deep the package is, as a table; `--map` prints the map of CONTRIBUTING.md.

    python tests/house.py [--map] [ROOT]

Floors are the longest chain of imports between the parts of the package (its direct children), in
which a circle is one floor; arrows back lead to a layer above, after the contract of import-linter.
A test file reaches internals if it, or a helper that it imports, imports more than public names.
"""

import ast
import re
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
#: Links to folders of the repository.
LINKS = ("data", "notebooks")
#: Functions of other packages that make a type of records, and that of the package for frames.
MAKERS = {"NamedTuple", "TypedDict", "namedtuple", "make_dataclass"}
FRAME = "Frame.make"
#: What tests and plug-ins may import: the package itself and its seam; tests also the command line.
PUBLIC = ("workbench", "workbench.plugin", "workbench.api", "workbench.graphs", "workbench.jobs",
          "workbench.pages")  # fmt: skip
#: What plug-ins import of the core, beside public names.
SEAM = ("api", "pages", "graphs", "jobs")
COMMAND_LINE = {"workbench.cli", "workbench.cli.main", "workbench.cli.workbench"}


def main(arguments: list[str]) -> int:
    places = [argument for argument in arguments if argument != "--map"]
    root = Path(places[0]).resolve() if places else HERE
    if "--map" in arguments:
        print(describe_map(root), end="")
        return 0
    print("| | value |\n| --- | --- |")
    for name, value in measure(root).items():
        print(f"| {name} | {value} |")
    return 0


def measure(root: Path) -> dict[str, str]:
    """The rows of the table."""
    files = list_files(root)
    lines = {path: len(path.read_text().splitlines()) for path in files}
    longest = max(lines, key=lambda path: lines[path])
    core = [path for path in files if "plugins" not in path.relative_to(root).parts]
    imports = find_imports(root)
    parts = sorted({*imports, *(part for found in imports.values() for part in found)})
    back = sum(
        rank_of(root, target) < rank_of(root, part)
        for part, found in imports.items()
        for target in found
    )
    tests = sorted(root.glob("tests/**/test_*.py"))
    inside = [path for path in tests if reaches_internals(path)]
    long = [name for path in core for name, size in list_functions(path) if size > 50]
    return {
        "lines of Python in the core": str(sum(lines[path] for path in core)),
        "lines in all": str(sum(lines.values())),
        "files in the core; in all": f"{len(core)}; {len(files)}",
        "names of files that several have": ", ".join(list_repeated(files)),
        "floors; circles; arrows back": f"{count_floors(imports)}; "
        f"{sum(len(circle) > 1 for circle in find_circles(imports))}; {back}",
        "parts; arrows": f"{len(parts)}; {sum(map(len, imports.values()))}",
        "classes; record types made by calls; frames": "{}; {}; {}".format(*count_classes(core)),
        "longest file": f"{lines[longest]} ({longest.relative_to(root)})",
        "functions above 50 lines": f"{len(long)}: {', '.join(sorted(long))}",
        f"names of {', '.join(SEAM)} for plug-ins; what else these import": "; ".join(
            str(len(names)) for names in (*list_seam(root).values(), list_inner(root))
        ),
        "test files that reach internals": f"{len(inside)} of {len(tests)}, "
        f"{100 * len(inside) / len(tests):.0f} %",
    }


def list_files(root: Path) -> list[Path]:
    """The Python files of the package."""
    found = (root / "workbench").rglob("*.py")
    return sorted(path for path in found if path.relative_to(root).parts[1] not in LINKS)


def list_repeated(files: list[Path]) -> list[str]:
    """The names that more than one file has, with how many."""
    counts = Counter(path.name for path in files if path.name != "__init__.py")
    return [f"{name} {count}" for name, count in counts.most_common() if count > 1]


def list_seam(root: Path) -> dict[str, set[str]]:
    """The names of each module of the core that plug-ins may import."""
    stubs = {name: ast.parse((root / "workbench" / f"{name}.pyi").read_text()) for name in SEAM}
    return {
        name: {
            alias.name
            for node in stub.body
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        for name, stub in stubs.items()
    }


def list_inner(root: Path) -> set[str]:
    """What plug-ins import of the core beside public names and those of the seam."""
    allowed = re.compile(rf"workbench(\.({'|'.join(SEAM)}|plugins)\b.*)?$")
    paths = [path for path in list_files(root) if "plugins" in path.relative_to(root).parts]
    nodes = [node for path in paths for node in ast.walk(parse(path))]
    modules = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    modules |= {each.name for node in nodes if isinstance(node, ast.Import) for each in node.names}
    parts = {f"workbench.{path.stem}" for path in (root / "workbench").iterdir()} - {
        "workbench.api"
    }
    named = {
        f"workbench.{each.name}"
        for node in nodes
        if isinstance(node, ast.ImportFrom) and node.module == "workbench"
        for each in node.names
    }
    ours = {name for name in modules if name.partition(".")[0] == "workbench"}
    return {name for name in ours if not allowed.match(name)} | (named & parts)


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imported_modules(tree: ast.Module) -> Iterator[str]:
    """The modules that a file imports, not only for types."""
    skipped = {
        child
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for child in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def find_imports(root: Path) -> dict[str, set[str]]:
    """The parts that each part imports; a part is a direct child of the package."""
    parts = {path.relative_to(root).with_suffix("").parts[1] for path in list_files(root)}
    imports = defaultdict[str, set[str]](set)
    for path in list_files(root):
        part = path.relative_to(root).with_suffix("").parts[1]
        names = (name.split(".") for name in imported_modules(parse(path)))
        found = {words[1] for words in names if words[0] == "workbench" and len(words) > 1}
        imports[part] |= (found & parts) - {part, "__init__"}
    return {part: found for part, found in imports.items() if part != "__init__"}


def find_circles(imports: dict[str, set[str]]) -> list[frozenset[str]]:
    """The parts in groups of those that import each other, by whatever way."""
    reached = {part: {part} for part in imports}
    while True:
        grown = {
            part: found.union(*(imports.get(each, set()) for each in found))
            for part, found in reached.items()
        }
        if grown == reached:
            break
        reached = grown
    return [
        *{
            frozenset(each for each in found if part in reached.get(each, ()))
            for part, found in reached.items()
        }
    ]


def count_floors(imports: dict[str, set[str]]) -> int:
    """The length of the longest chain of imports."""
    circle_of = {part: circle for circle in find_circles(imports) for part in circle}

    @cache
    def height(circle: frozenset[str]) -> int:
        below = {circle_of[each] for part in circle for each in imports.get(part, ())} - {circle}
        return 1 + max(map(height, below), default=0)

    return max(map(height, circle_of.values()))


@cache
def list_layers(root: Path) -> tuple[tuple[str, ...], ...]:
    """The layers of import-linter's contract, the highest first."""
    tools = tomllib.loads((root / "pyproject.toml").read_text())["tool"]
    layers = tools["importlinter"]["contracts"][0]["layers"]
    return tuple(tuple(re.split(r"\s*[:|]\s*", layer)) for layer in layers)


def rank_of(root: Path, part: str) -> int:
    """The number of a part's layer; the highest is 0."""
    return next(rank for rank, layer in enumerate(list_layers(root)) if part in layer)


def list_functions(path: Path) -> Iterator[tuple[str, int]]:
    """The functions of a file and their lines."""
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node.end_lineno or 0) - node.lineno + 1


def count_classes(files: list[Path]) -> tuple[int, int, int]:
    """The classes of some files, the record types that calls make, and the frames."""
    trees = [parse(path) for path in files]
    functions = [
        node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
    ]
    wrappers = {node.name for node in functions if any(called(n) in MAKERS for n in ast.walk(node))}
    inside = {n for node in functions if node.name in wrappers for n in ast.walk(node)}
    makers = MAKERS | wrappers
    nodes = [node for tree in trees for node in ast.walk(tree)]
    classes = sum(isinstance(node, ast.ClassDef) for node in nodes)
    made = sum(called(node) in makers and node not in inside for node in nodes)
    return classes, made, sum(called(node) == FRAME for node in nodes)


def called(node: ast.AST) -> str:
    """The name of the function that an expression calls."""
    return ast.unparse(node.func) if isinstance(node, ast.Call) else ""


@cache
def reaches_internals(path: Path) -> bool:
    """Whether a test file, or a helper that it imports, imports more than public names."""
    names = set(imported_modules(parse(path)))
    ours = {name for name in names if name.partition(".")[0] == "workbench"} - COMMAND_LINE
    modules = {".".join(name.split(".")[:2]) for name in ours}
    if any(is_module(module) and module not in PUBLIC for module in modules):
        return True
    helpers = [HERE / "tests" / f"{name}.py" for name in names]
    return any(reaches_internals(helper) for helper in helpers if helper.is_file())


def is_module(name: str) -> bool:
    """Whether this is a module of the package and no public name."""
    place = HERE / name.replace(".", "/")
    return place.is_dir() or place.with_suffix(".py").is_file()


def describe_map(root: Path) -> str:
    """The layers from the highest to the lowest, with what their docstrings say."""
    rows, layers = ["| layer | part | what it holds |", "| ---: | --- | --- |"], list_layers(root)
    for height, layer in zip(range(len(layers), 0, -1), layers, strict=True):
        for part in layer:
            folder = root / "workbench" / part
            path = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
            text = (ast.get_docstring(parse(path)) or "").partition("\n\n")[0]
            name = f"{part}/" if folder.is_dir() else f"{part}.py"
            rows.append(f"| {height} | `{name}` | {' '.join(text.split())} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
