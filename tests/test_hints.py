"""Commands and options that errors, hints, findings and pages name exist, and take these values."""

import ast
import re
from contextlib import suppress
from pathlib import Path

import click
import pytest
from command_line import COMMANDS

PACKAGE = Path(__file__).resolve().parents[1] / "workbench"
#: Words that follow the name of the product in prose.
PROSE = {"and", "as", "functions", "has", "import", "reads", "record", "version"}
#: What an option takes in the place of a name that is known at run time only.
VALUES = {
    "--dtype": "fp16", "--rewrite": "norms", "--threads": "2", "--measure": "group_size=64",
    "--sweep": "batch=1,2", "--module-dtype": "head=fp32", "--phase": "near=1@16",
}  # fmt: skip
#: Options of other programs, and a property of JupyterLab's pages.
FOREIGN = {"--install", "--jp-layout-color", "--nthreads", "--print", "--resources"}


def texts_of(file):
    """The line and the text of each string that is no docstring; names in it are in braces."""
    tree = ast.parse(file.read_text())
    docstrings = {
        node.body[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    parts = {
        part for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            pieces = (p.value if isinstance(p, ast.Constant) else "{name}" for p in node.values)
            yield node.lineno, "".join(map(str, pieces))
        elif node not in docstrings | parts and isinstance(getattr(node, "value", None), str):
            yield node.lineno, node.value


TEXTS = [
    (f"{file.relative_to(PACKAGE)}:{line}", text)
    for file in sorted(PACKAGE.rglob("*.py"))
    if "data" not in file.relative_to(PACKAGE).parts
    for line, text in texts_of(file)
]


def commands_of(text):
    """The commands in a text, as a name and its words; prose after them is cut."""
    for name, rest in re.findall(r"\bworkbench ([a-z][a-z0-9]*(?:-[a-z]+)*)([^`#;()\n]*)", text):
        if name in PROSE:
            continue
        words, expects = [], ""
        takes = {o: p for p in COMMANDS[name].params for o in p.opts} if name in COMMANDS else {}
        for word in rest.split():
            if expects:
                words.append(VALUES.get(expects, "name") if "{" in word else word.rstrip(",."))
                expects = ""
            elif word.startswith("--"):
                words.append(word.rstrip(",."))
                param = takes.get(words[-1])
                expects = "" if getattr(param, "is_flag", False) else words[-1]
            elif re.match(r"[A-Z{]|\w+[:.]\w", word):
                words.append(re.sub(r"\{.*?\}", "name", word).rstrip(",."))
            else:
                break
        yield name, words


COMMANDS_NAMED = sorted(
    {(place, name, *words) for place, text in TEXTS for name, words in commands_of(text)}
)


def test_there_are_commands_in_texts_of_many_parts():
    folders = {place.partition("/")[0] for place, *_ in COMMANDS_NAMED}
    assert {"analysis", "run", "export", "cli", "report"} <= folders
    assert len(COMMANDS_NAMED) >= 30, "those of the core alone"
    assert list(commands_of("try `workbench export MODEL --rewrite {x}` and look")) == [
        ("export", ["MODEL", "--rewrite", "norms"])
    ]


@pytest.mark.parametrize("call", COMMANDS_NAMED, ids=" ".join)
def test_a_command_that_a_text_names_exists_and_takes_these_arguments(call):
    _, name, *words = call
    assert name in COMMANDS
    with suppress(click.MissingParameter):  # in a text, a command may go without its subject
        COMMANDS[name].make_context(name, words)


def test_the_options_that_texts_name_exist():
    params = [param for command in COMMANDS.values() for param in command.params]
    known = {option for param in params for option in (*param.opts, *param.secondary_opts)}
    unknown = {}
    for place, text in TEXTS:
        if " " in text:
            options = re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)
            unknown |= dict.fromkeys({*options} - known - {"--help", "--debug"}, place)
    assert unknown.keys() <= FOREIGN, unknown
