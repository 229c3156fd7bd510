"""A few mutants of every file that comes from elsewhere; ``python3 dev.py fuzz`` makes more."""

from random import Random

import pytest
from fuzz import KINDS
from mutants import Kind, fuzz, mutate_json

import workbench as wb

#: They are read by analysing a whole run.
SLOW = ("run", "run_layers", "metrics")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.cases) if n in SLOW else n for n in KINDS]
)
def test_mutants_are_read_or_refused(tmp_path, name):
    count = 4 if name in SLOW else 300 if name == "etdump" else 30
    ends, failures = fuzz(KINDS[name], 1, range(count), tmp_path / "mutant")
    assert not failures
    assert ends["read"] + ends["refused"] == count


def test_mutants_are_reproducible():
    seeds = [b'{"a": [1, {"b": null}], "c": "text"}']
    mutants = [mutate_json(Random(f"0 {n}"), seeds) for n in (*range(20), *range(20))]
    assert mutants[:20] == mutants[20:]
    assert len(set(mutants)) > 15


def test_a_reader_that_fails_is_noticed(tmp_path):
    seed = b'{"a": 1}'

    def refuse(path):
        if path.read_bytes() != seed:
            raise wb.WorkbenchError("x" * 10**5, where="a\x1b\n")

    def crash(path):
        if path.read_bytes() != seed:
            raise KeyError("a")

    ends, failures = fuzz(Kind("x.json", lambda _: [seed], refuse), 0, range(5), tmp_path)
    assert (ends["refused"], failures) == (5, {})
    ends, failures = fuzz(Kind("x.json", lambda _: [seed], crash), 0, range(5), tmp_path)
    assert ends["failed"] == 5
    assert len(failures) == 1
