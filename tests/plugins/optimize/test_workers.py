"""Processes that export for a search."""

import os
import signal

import pytest

import workbench as wb
from workbench.plugins.optimize.workers import open_workers


@pytest.mark.whole
def test_a_process_that_dies_loses_only_its_own_job():
    with open_workers(1) as submit:
        pid = submit(eval, "__import__('os').getpid()").result(timeout=200)
        dead = submit(eval, "__import__('os')._exit(1)")
        assert submit(len, "abc").result(timeout=200) == 3
        with pytest.raises(wb.WorkbenchError, match=r"the worker process died -> .*--jobs"):
            dead.result()
        last = submit(eval, "__import__('os').getpid()").result(timeout=200)
    assert last != pid
    with pytest.raises(ProcessLookupError):
        os.kill(last, signal.SIGCONT)
