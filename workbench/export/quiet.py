"""Silence for the exporter's own chatter."""

import contextlib
import logging
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Drop warnings and log lines below CRITICAL for a while; prints pass.

    An export that goes well still logs dozens of lines about libraries that are not installed
    and functions that are deprecated inside of PyTorch; what goes wrong arrives as an exception.
    """
    level = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
