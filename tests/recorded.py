"""Recorded runs that tests only read; each is opened once."""

import functools

import workbench as wb


@functools.cache
def recorded(name="mobilenet_v3_small"):
    """The run of a recorded sample."""
    return wb.open_run(wb.sample_run(name))
