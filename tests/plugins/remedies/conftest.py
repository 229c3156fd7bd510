"""A remedy that raises fails the test, wherever it was looked for."""

import logging

import pytest


class _Faults(logging.Handler):
    """Keeps what is logged."""

    def __init__(self):
        super().__init__()
        self.texts = []

    def emit(self, record):
        self.texts.append(f"{record.getMessage()}: {record.exc_info and record.exc_info[1]!r}")


@pytest.fixture(autouse=True)
def no_remedy_fails():
    log, faults = logging.getLogger("workbench.plugins.remedies"), _Faults()
    level = log.level
    log.addHandler(faults)
    log.setLevel(logging.DEBUG)
    yield faults.texts
    log.setLevel(level)
    log.removeHandler(faults)
    assert not faults.texts
