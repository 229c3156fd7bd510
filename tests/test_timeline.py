"""The timeline figure: spans keep their time and nesting, and the run of median length is shown."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded import recorded

from workbench.errors import StoreError
from workbench.plots.timeline import grow_spans, plot_timeline, typical_spans


@pytest.fixture(scope="module")
def ab():
    return recorded().compare()


def forest(draw):
    """Spans of random depth, length and order of siblings; children may outlast their parent."""
    rows = []
    for run in range(draw(st.integers(1, 4))):
        root = len(rows)
        rows.append((run, -1, draw(st.integers(0, 10**6)), draw(st.integers(0, 2**33)), "method"))
        for _ in range(draw(st.integers(0, 12))):
            parent = draw(st.integers(root, len(rows) - 1))
            start = rows[parent][2] + draw(st.integers(-50, 1000))
            rows.append((run, parent, start, draw(st.integers(0, 5000)), "other"))
    frame = pd.DataFrame(rows, columns=["run", "parent", "start_ns", "duration_ns", "kind"])
    return frame.assign(event=range(len(frame)))


@given(st.data())
def test_spans_of_any_forest_keep_their_time_and_count_from_their_run(data):
    spans = data.draw(st.composite(forest)())
    grown = grow_spans(spans).set_index("event")
    begins = spans[spans["parent"] < 0].set_index("run")["start_ns"]
    for row in spans.itertuples():
        found = grown.loc[row.event]
        assert found["start_ns"] == row.start_ns - begins[row.run]
        assert found["duration_ns"] == row.duration_ns
        above = -1 if row.parent < 0 else grown.loc[row.parent, "depth"]
        assert found["depth"] == above + 1


def test_the_figure_shows_the_run_of_median_length(ab):
    figure = plot_timeline(ab)
    for m, drawn in zip((ab.baseline, ab.candidate), figure.axes[0].collections, strict=True):
        methods = m.spans[(m.spans["kind"] == "method") & (m.spans["run"] >= 0)]
        widths = [np.ptp(path.vertices[:, 0]) for path in drawn.get_paths()]
        lengths = sorted(methods["duration_ns"])
        assert max(widths) * 1e6 == pytest.approx(lengths[len(lengths) // 2])


def test_without_a_complete_run_there_is_an_error(ab):
    spans = ab.candidate.spans
    with pytest.raises(StoreError, match="no complete run"):
        typical_spans(spans[spans["run"] < 0])
