"""Traces of emulated Arm CPUs, SME2 among them: every event finds the layer that XNNPACK says.

They were recorded under QEMU by ``record_attribution.py``, the truth with them; QEMU says
which operators run and what they are called, not how fast.
"""

import gzip
import json
from pathlib import Path

import pytest

from workbench.analysis.attribution import attribute_layers
from workbench.analysis.ledger import build_ledger
from workbench.records.codec import from_json
from workbench.records.layers import Layers
from workbench.trace.etdump import read_etdump

GOLDEN = Path(__file__).parent / "data" / "attribution"
TRUTH = json.loads((GOLDEN / "truth.json").read_text())
PROGRAMS = sorted({trace.partition(".")[0] for trace in TRUTH})
SURE = ["exact", "fitted"]


def read(trace):
    """The ledger of a trace and the attribution of its rows, by key."""
    ledger = build_ledger(read_etdump(GOLDEN / f"{trace}.etdump"))
    packed = GOLDEN / f"{trace.partition('.')[0]}.layers.json.gz"
    layers = from_json(Layers, gzip.decompress(packed.read_bytes()), packed)
    return ledger, attribute_layers(ledger, layers).set_index("key")


def count_wrong(rows, truth):
    return sum(rows.loc[key, "module"] not in modules for key, modules in truth.items())


@pytest.mark.parametrize("trace", TRUTH)
def test_every_event_is_of_its_layer(trace):
    ledger, rows = read(trace)
    operators = set(ledger.loc[ledger["kind"].isin(["delegated", "portable"]), "key"])
    assert operators == TRUTH[trace].keys()
    assert all(TRUTH[trace].values())
    found = rows.loc[list(TRUTH[trace])]
    assert set(found["confidence"]) <= set(SURE)
    assert count_wrong(found, TRUTH[trace]) == 0


def test_the_truth_would_tell():
    """Layers moved by one event are found out, so agreement means something."""
    _, rows = read("unet.sme2")
    moved = rows.loc[list(TRUTH["unet.sme2"])].copy()
    moved["module"] = moved["module"].shift(1)
    assert count_wrong(moved, TRUTH["unet.sme2"]) > len(moved) / 2


@pytest.mark.parametrize(
    ("program", "packed"),
    [("residual", "PF32"), ("residual-fp16w", "PF16"), ("residual-int8", "PQS8")],
)
def test_the_traces_are_of_sme2(program, packed):
    """What the extension changes is in the names; without it they are others."""
    names = {cpu: "".join(read(f"{program}.{cpu}")[0]["operator"]) for cpu in ("sme2", "nosme")}
    assert packed in names["sme2"]
    assert packed not in names["nosme"]


@pytest.mark.parametrize("program", PROGRAMS)
def test_an_extension_changes_no_layer(program):
    """Where both sides ran the same operators, these are of the same layers."""
    sides = [read(f"{program}.{cpu}")[1]["module"].fillna("-") for cpu in ("sme2", "nosme")]
    shared = sides[0].index.intersection(sides[1].index)
    assert len(shared) > len(sides[0]) / 2
    assert sides[0][shared].equals(sides[1][shared])


def test_a_1x1_convolution_for_sme2_is_a_convolution_that_runs_as_gemm():
    ledger, rows = read("residual.sme2")
    names = ledger.set_index("key")["operator"]
    (key,) = rows.index[(rows["module"] == "squeeze") & (rows["role"] == "compute")]
    assert names[key] == "Fully Connected (NC, PF32) GEMM"
    assert rows.loc[key, "module_class"] == "Conv2d"
