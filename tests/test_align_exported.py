"""Layers of programs that differ line up: other kernels, other dtypes, another version."""

import pytest
from exported_runs import make_model, measure_briefly

import workbench as wb

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(900)]


def make_models():
    """One network in two versions: renamed, in another order, and with a layer more."""
    import torch
    from torch import nn

    def unit(inputs, outputs):
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()
        )

    class First(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.body, self.tail = unit(3, 16), unit(16, 24), unit(24, 32)
            self.head = nn.Linear(32, 10)

        def forward(self, x):
            x = self.tail(self.body(self.stem(x)))
            return self.head(x.mean((2, 3), keepdim=True).flatten(1))

    class Second(nn.Module):
        def __init__(self):
            super().__init__()
            # Made in another order than they run in, and called something else.
            self.classifier = nn.Linear(32, 10)
            self.encoder = nn.ModuleList([unit(24, 32), unit(16, 24), unit(3, 16)])
            self.extra = nn.Conv2d(24, 24, 1)

        def forward(self, x):
            tail, body, stem = self.encoder
            x = tail(self.extra(body(stem(x))))
            return self.classifier(x.mean((2, 3), keepdim=True).flatten(1))

    inputs = (torch.randn(1, 3, 64, 64),)
    return [make_model(kind.__name__, kind(), inputs) for kind in (First, Second)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Run folders by name."""
    first, second = make_models()
    made = {
        "fp32": (first, {}),
        "int8": (first, {"dtype": "int8"}),
        "portable": (first, {"backend": "portable"}),
        "second": (second, {}),
    }
    found = {}
    for name, (model, options) in made.items():
        root = tmp_path_factory.mktemp(name)
        found[name] = str(measure_briefly(model, root, processes=3, **options))
    return found


def side_by_side(runs, one, other):
    """The rows of the layers: time in each of two runs, and what the other calls it."""
    table = wb.combine_runs([runs[one], runs[other]], across=["program", "build"]).align()
    layers = table[table["level"] == "layer"]
    sides = [part.set_index("name") for _, part in layers.groupby("run", sort=False)]
    return sides[0][["time_ms"]].join(sides[1][["time_ms", "known_as"]], rsuffix="_other")


UNITS = [f"{name}.0 + {name}.1 + {name}.2" for name in ("stem", "body", "tail")]


def test_what_xnnpack_fuses_and_the_portable_kernels_do_not_shares_a_row(runs):
    rows = side_by_side(runs, "fp32", "portable")
    assert [name for name in rows.index if " + " in name] == UNITS
    assert rows.loc[[*UNITS, "head"]].notna().all(axis=None)
    assert (rows.loc[UNITS, "time_ms_other"] > rows.loc[UNITS, "time_ms"]).all()
    reverse = side_by_side(runs, "portable", "fp32")
    assert set(rows.index) == set(reverse.index)


def test_another_dtype_keeps_the_rows(runs):
    rows = side_by_side(runs, "fp32", "int8")
    named = rows[~rows.index.str.startswith("(")]
    assert list(named.index) == [*UNITS, "head"] or list(named.index) == [
        *(f"{name}.0" for name in ("stem", "body", "tail")),
        "head",
    ]
    assert named.notna().all(axis=None)


def test_a_version_that_was_renamed_and_reordered_keeps_the_rows(runs):
    rows = side_by_side(runs, "fp32", "second")
    known = rows["known_as"].dropna().to_dict()
    pairs = {"stem": "encoder.2", "body": "encoder.1", "tail": "encoder.0", "head": "classifier"}
    for one, other in pairs.items():
        (row,) = (name for name in known if name.startswith(one))
        assert known[row].startswith(other), known
        assert rows.loc[row].notna().all()
    (extra,) = (name for name in known if name.startswith("extra"))
    assert rows["time_ms"].isna()[extra], "the first version has none"
    assert rows.loc[extra, "time_ms_other"] > 0


def test_all_at_once(runs):
    several = wb.combine_runs(list(runs.values()), across=["program", "build"])
    names, table = dict(zip(runs, several.measurements, strict=True)), several.align()
    times = table[table["level"] == "layer"].pivot(index="name", columns="run", values="time_ms")
    units = [name for name in times.index if name.startswith(("stem", "body", "tail"))]
    assert len(units) == 3
    assert times.loc[units].notna().all(axis=None)
    e2e = table[table["level"] == "e2e"].set_index("run")["time_ms"]
    assert set(e2e.index) == set(names.values())
    assert e2e[names["portable"]] > e2e[names["fp32"]]
