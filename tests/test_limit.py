"""Work that never ends is ended, and whoever tries again is told."""

import os
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

from workbench.errors import WorkbenchError
from workbench.portfolio.executor import limit_time, open_office

# A regular expression holds the interpreter's lock for ever: no thread and no signal gets a turn.
HANG = """
import re, sys
from pathlib import Path
from workbench.portfolio.limit import limit_time

def hang():
    with limit_time(Path(sys.argv[1]), "first", 0.5):
        re.match("(a|a)*b", "a" * 99)

hang()
"""


@pytest.mark.slow
def test_native_code_that_hangs_is_ended_and_said_once(tmp_path):
    note = tmp_path / "logs" / "net.where"
    done = subprocess.run([sys.executable, "-c", HANG, note], timeout=60)
    assert done.returncode == 1
    assert "in hang" in note.read_text()
    with (
        pytest.raises(WorkbenchError, match="did not end within 60 s") as error,
        limit_time(note, "first", 60),
    ):
        pytest.fail("tried once more")
    assert "in hang" in "".join(traceback.format_exception(error.value))
    with limit_time(note, "first", 60):
        assert note.exists()
    assert not note.exists()


def test_another_attempt_is_not_told(tmp_path):
    note = tmp_path / "net.where"
    note.write_text("first\nTimeout (1:00:00)!\n")
    with limit_time(note, "second", 60):
        pass
    assert not note.exists()


def test_an_error_within_is_the_error(tmp_path):
    note = tmp_path / "net.where"
    with pytest.raises(OSError, match="no such tensor"), limit_time(note, "first", 60):
        raise OSError("no such tensor")
    assert not note.exists()


def hang_in_an_office(note: Path) -> int:
    with limit_time(note, "first", 1):
        while True:
            os.getpid()


@pytest.mark.slow
def test_an_office_fails_the_job_and_goes_on(tmp_path):
    with open_office(1, []) as office:
        hanging = office.start(hang_in_an_office, tmp_path / "net.where", "")
        after = office.start(len, "abc", "")
        assert after.result(timeout=280) == 3
        with pytest.raises(WorkbenchError, match="did not end within 1 s"):
            hanging.result()
