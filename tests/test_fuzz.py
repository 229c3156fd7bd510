"""A short run of the fuzz target; ``python3 dev.py fuzz`` makes a long one."""

import pytest
from etdump_builder import Block, Profile, build_etdump
from fuzz_etdump import Mutator, check_ledgers, fuzz

from workbench.trace.etdump import read_etdump


def test_mutants_are_read_or_refused(tmp_path):
    ends = fuzz(0, range(400), tmp_path)
    assert ends.total() == 400
    assert min(ends["read"], ends["refused"]) > 20


def test_a_mutant_is_always_the_same(tmp_path):
    mutants = [Mutator(1, tmp_path).make(n) for n in (5, 6, 5)]
    assert mutants[0] == mutants[2] != mutants[1]


def test_a_ledger_that_does_not_close_is_noticed(tmp_path):
    run = [
        Profile("DELEGATE_CALL", 0, 0, start=2, end=6),
        Profile("Method::execute", -1, 0, start=1, end=12),
    ]
    path = tmp_path / "it.etdump"
    path.write_bytes(build_etdump([Block("Execute", run)] * 3))
    events = read_etdump(path)
    check_ledgers([events, events])
    with pytest.raises(AssertionError, match="does not close"):
        check_ledgers([events, events.assign(parent=-1)])
