"""Long traces, made of a short one."""

import numpy as np
import pandas as pd

from workbench.frames import SPANS


def repeat_spans(spans: pd.DataFrame, count: int, seed: int = 0) -> pd.DataFrame:
    """The whole runs of a trace again and again, each a little longer than before elsewhere.

    Parameters
    ----------
    spans
        ``frames.SPANS``.
    count
        How many spans there have to be at least.
    seed
        Of what operators take longer: whole microseconds, as XNNPACK logs them, end to end.
    """
    spans = spans[spans["run"] >= 0]
    repeats = count // len(spans) + 1
    copies = pd.concat([spans[SPANS.names]] * repeats, ignore_index=True)
    number = np.repeat(np.arange(repeats), len(spans))
    place = np.tile(pd.Index(spans["event"]).get_indexer(spans["parent"]), repeats)
    noise = 1000 * np.random.default_rng(seed).integers(0, 6, len(copies))
    noise = np.where(copies["kind"] == "delegate_operator", noise, 0)
    run = copies["run"] + number * (spans["run"].max() + 1)
    return copies.assign(
        event=np.arange(len(copies)),
        parent=np.where(place >= 0, place + number * len(spans), -1),
        run=run,
        start_ns=copies["start_ns"] + pd.Series(noise).groupby(run).cumsum() - noise,
        duration_ns=copies["duration_ns"] + noise,
    )
