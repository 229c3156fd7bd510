"""Every public name is documented, and its examples run."""

import doctest
import inspect
import re
import socket
from collections import Counter

import pytest
from recorded import open_once

import workbench as wb

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
#: Constants have no docstring.
NAMES = [name for name in wb.__all__ if not name.isupper()]


@pytest.fixture
def offline(monkeypatch):
    def refuse(*_):
        raise OSError("examples must not use the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.mark.parametrize("name", NAMES)
def test_examples_run(name, offline, tmp_path, monkeypatch):
    if name != "open_run":  # most examples read the same recorded run
        monkeypatch.setattr(wb, "open_run", open_once)
    text = inspect.cleandoc(getattr(wb, name).__doc__ or "")
    assert "\nExamples\n--------\n" in text
    monkeypatch.chdir(tmp_path)
    test = doctest.DocTestParser().get_doctest(text, {"wb": wb}, name, None, None)
    assert test.examples
    report = []
    failed, _ = doctest.DocTestRunner(optionflags=FLAGS).run(test, out=report.append)
    assert not failed, "".join(report)


def test_help_lists_every_name_once():
    """The names stand on the indented lines of the module's docstring."""
    lines = re.findall(r"^[ \t]+(.+)$", wb.__doc__, re.MULTILINE)
    listed = Counter(re.findall(r"\w+", " ".join(lines)))
    assert listed == Counter(wb.__all__)
