"""The layer of every operator: of real runs, and of recorded runs on emulated Arm CPUs.

``record_attribution.py`` recorded the Arm traces under QEMU, with the true layers.
"""

import gzip
import hashlib
import json
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from layer_truth import Record, probe_command, read_plans, true_modules, true_nodes
from synthetic import synthetic_ledger

from workbench.analysis.attribution import CONFIDENCES, attribute_layers
from workbench.analysis.ledger import build_ledger
from workbench.export.sidecar import outline_pte
from workbench.records.codec import parse_json, structure
from workbench.records.layer_sidecar import Layers
from workbench.run.build import find_compiler, installed_compiler
from workbench.run.isa import read_isa
from workbench.run.runner import find_runner
from workbench.store import load_record
from workbench.trace.etdump import read_etdump

RUNS = 20

SLOW = [
    "residual-fp16", "residual-fp16w", "residual-int8", "separable",
    "separable-fp16", "separable-int8", "unet", "unet-fp16", "unet-int8", "transformer",
    "transformer-fp16", "transformer-int8", "transformer-int8dyn", "centred-int8", "toy_cnn",
    "mobilenet", "mobilenet-fp16",
]  # fmt: skip

programs = pytest.mark.parametrize(
    "name",
    [
        pytest.param("residual", marks=pytest.mark.whole),
        *(pytest.param(name, marks=pytest.mark.cases) for name in SLOW),
    ],
)
levels = pytest.mark.parametrize("level", ["native", "least"])


@pytest.fixture(scope="session")
def program(request):
    """From the name of a network to the folder of its program; exported once."""
    tests = Path(__file__).parent
    export = tests.parent / "workbench" / "export"
    sources = [
        tests / "layer_models.py",
        *sorted((export.parent / "records").glob("*.py")),
        *sorted(export.glob("*.py")),
    ]
    text = b"".join(path.read_bytes() for path in sources)
    text += "".join(metadata.version(name) for name in ("executorch", "torch")).encode()
    folder = request.config.cache.mkdir(f"layers-{hashlib.sha256(text).hexdigest()[:12]}")

    def find(name):
        if not (folder / f"{name}.input").exists():
            from layer_models import export_layers

            export_layers(name, folder)
        return folder

    return find


@pytest.fixture(scope="session")
def trace(program, tmp_path_factory):
    """From a network and an ISA level to the ledger of a real run, and the sidecar."""
    if installed_compiler() is None:
        pytest.skip("no C++ compiler")
    runner, known = find_runner(), {}
    least = list(read_isa(runner.command).levels)[-1]

    def run(name, level):
        if (name, level) not in known:
            folder, etdump = program(name), tmp_path_factory.mktemp("traces") / "x.etdump"
            flags = ["--model_path", str(folder / f"{name}.pte"), "--cpu_threads", "1"]
            flags += ["--inputs", str(folder / f"{name}.input"), "--etdump_path", str(etdump)]
            flags += ["--isa", least if level == "least" else level]
            with runner.open(flags, timeout_s=60) as session:
                session.run(3)
                session.reset()
                session.run(RUNS)
                session.etdump(etdump)
            text = (folder / f"{name}.layers.json").read_text()
            ledger = build_ledger(read_etdump(etdump))
            known[name, level] = ledger, structure(Layers, parse_json(text, name), name)
        return known[name, level]

    return run


@pytest.fixture(scope="session")
def truth(program, tmp_path_factory):
    """From a network and an ISA level to the modules that XNNPACK says each row may be of."""
    compiler = find_compiler()
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs a C++ compiler, and preloading as Linux does it")
    folder = tmp_path_factory.mktemp("truth")
    probe, plan, etdump = (folder / name for name in ("probe.so", "plan.txt", "x.etdump"))
    subprocess.run(probe_command(compiler, probe), check=True)
    runner = find_runner()
    least = list(read_isa(runner.command).levels)[-1]

    def run(name, level):
        plan.write_text("")
        stem = program(name) / name
        command = [*runner.command, "--model_path", f"{stem}.pte", "--inputs", f"{stem}.input"]
        command += ["--isa", least if level == "least" else level, "--etdump_path", str(etdump)]
        environment = {**os.environ, "LD_PRELOAD": str(probe), "XNN_PLAN": str(plan)}
        subprocess.run(command, env=environment, check=True, capture_output=True)
        layers = load_record(Layers, Path(f"{stem}.layers.json"))
        ledger, plans = build_ledger(read_etdump(etdump)), read_plans(plan.read_text())
        nodes = true_nodes(Path(f"{stem}.pte").read_bytes(), layers, plans, ledger)
        return nodes, true_modules(layers, nodes, Record(f"{stem}.etrecord"), ledger)

    return run


def rows_of(ledger, layers):
    """The attribution in the order of execution, with names and the least time of all runs."""
    first = ledger.drop_duplicates("key")[["key", "operator", "kind"]].astype(object)
    best = ledger.groupby("key", observed=True)["duration_ns"].min()
    rows = first.merge(attribute_layers(ledger, layers), on="key", validate="1:1")
    return rows.assign(ns=rows["key"].map(best).astype(float))


@programs
@levels
def test_every_event_is_of_the_layer_that_xnnpack_says(trace, truth, name, level):
    found = attribute_layers(*trace(name, level)).set_index("key")
    nodes, modules = truth(name, level)
    assert len(modules) > 5
    for key, known in modules.items():
        assert found.loc[key, "module"] in known, key
    for key, known in nodes.items():
        named = found.loc[key, "xnodes"]
        if isinstance(named, str):  # a cast that XNNPACK put in is of no exported operator
            assert set(map(int, named.split(","))) == known, key


@programs
@levels
def test_every_row_is_attributed_once_and_for_sure(trace, name, level):
    ledger, layers = trace(name, level)
    table = attribute_layers(ledger, layers)
    assert list(table["key"]) == list(ledger["key"].astype(object).drop_duplicates())
    rows = rows_of(ledger, layers)
    assert set(rows["confidence"]) <= set(CONFIDENCES)
    operators = rows[rows["kind"].isin(["delegated", "portable"])]
    assert set(operators["confidence"]) <= {"exact", "fitted"}
    assert operators["module"].notna().all()
    rest = rows[rows["kind"].isin(["framework", "delegate_overhead"])]
    assert set(rest["confidence"]) == {"unattributed"}
    assert rest["module"].isna().all()
    assert rest["flops"].isna().all()


@pytest.mark.whole
def test_a_sidecar_without_layers_still_tells_shapes_and_costs(trace, program):
    ledger, layers = trace("residual", "native")
    bare = outline_pte((program("residual") / "residual.pte").read_bytes())
    assert bare.sha256 == layers.sha256
    named, unnamed = attribute_layers(ledger, layers), attribute_layers(ledger, bare)
    columns = ["key", "shapes", "flops", "bytes", "confidence"]
    pd.testing.assert_frame_equal(named[columns], unnamed[columns])
    assert unnamed["module"].isna().all()
    assert unnamed["source"].isna().all()


@pytest.mark.cases
def test_a_sidecar_of_another_program_attributes_nothing(trace):
    ledger, _ = trace("transformer-fp16", "native")
    _, other = trace("residual", "native")
    assert set(attribute_layers(ledger, other)["confidence"]) == {"unattributed"}
    table = attribute_layers(synthetic_ledger(runs=2), other)
    assert set(table["confidence"]) == {"unattributed"}


@pytest.mark.whole
@pytest.mark.parametrize(
    ("name", "logged", "packed"),
    [
        ("residual", "(NHWC, F32) IGEMM", "(NHWC, PF32) IGEMM"),
        ("residual", "(NC, F32) GEMM", "(NC, PF32) GEMM"),
        pytest.param(
            *("transformer-fp16", "(NC, F16) GEMM", "(NC, PF16) GEMM"), marks=pytest.mark.cases
        ),
    ],
)
def test_operands_packed_for_sme2_change_nothing(trace, name, logged, packed):
    ledger, layers = trace(name, "native")
    renamed = ledger["operator"].astype(object).str.replace(logged, packed, regex=False)
    assert (renamed != ledger["operator"]).any()
    pd.testing.assert_frame_equal(
        attribute_layers(ledger.assign(operator=renamed), layers), attribute_layers(ledger, layers)
    )


@pytest.mark.cases
def test_a_log_with_a_missing_event_is_never_sure_where_it_cannot_be(trace):
    """Without one of the convolutions nobody knows which one; what is unlike them stays known."""
    ledger, layers = trace("toy_cnn", "native")
    truth = attribute_layers(ledger, layers).set_index("key")
    for lost in ("0/Convolution/0", "0/Convolution/1", "0/Convolution/2"):
        left = ledger[ledger["key"] != lost].reset_index(drop=True)
        found = attribute_layers(left, layers).set_index("key")
        sure = found[found["confidence"].isin(["exact", "fitted"])]
        right = truth.loc[sure.index, "module"]
        assert right.fillna("-").equals(sure["module"].fillna("-"))
        ambiguous = found[found["confidence"] == "ambiguous"]
        assert len(ambiguous)
        assert "Max Pooling" in "".join(sure.index)


@pytest.mark.cases
def test_runs_that_differ_are_never_sure(trace):
    ledger, layers = trace("toy_cnn", "native")
    odd = (ledger["run"] == 1) & (ledger["key"] == "0/Max Pooling/0")
    found = attribute_layers(ledger[~odd].reset_index(drop=True), layers).set_index("key")
    inside = [key for key in found.index if key.startswith("0/") and "DELEGATE" not in key]
    assert set(found.loc[inside, "confidence"]) == {"ambiguous"}
    assert found.loc["1/native_call_mean.out/0", "confidence"] == "exact"


@pytest.mark.cases
def test_unknown_numbers_are_absent(trace):
    rows = rows_of(*trace("transformer-fp16", "native"))
    norm = rows[rows["operator"] == "native_call_native_layer_norm.out"]
    assert len(norm) == 2
    assert norm["flops"].isna().all()
    assert np.isfinite(norm["bytes"]).all()


GOLDEN = Path(__file__).parent / "data" / "attribution"
TRUTH = json.loads((GOLDEN / "truth.json").read_text())
SURE = ["exact", "fitted"]


def read(trace):
    """The ledger of a trace and the attribution of its rows, by key."""
    ledger = build_ledger(read_etdump(GOLDEN / f"{trace}.etdump"))
    packed = GOLDEN / f"{trace.partition('.')[0]}.layers.json.gz"
    layers = structure(Layers, parse_json(gzip.decompress(packed.read_bytes()), packed), packed)
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


def test_a_1x1_convolution_for_sme2_is_a_convolution_that_runs_as_gemm():
    ledger, rows = read("residual.sme2")
    row = rows[(rows["module"] == "squeeze") & (rows["role"] == "compute")].iloc[0]
    names = ledger.set_index("key")["operator"]
    assert names[row.name] == "Fully Connected (NC, PF32) GEMM"
    assert row["module_class"] == "Conv2d"
    assert row["shapes"] == "1x16x16x24 -> 1x16x16x40"
    assert row["flops"] == 2 * 16 * 16 * 24 * 40
    assert row["bytes"] == 4 * (16 * 16 * 24 + (24 + 1) * 40 + 16 * 16 * 40)
    assert row["also"].startswith("norm")
    assert re.search(r"layer_models\.py:\d+$", row["source"])


def test_what_was_folded_into_an_operator_is_listed():
    stem = read("residual.sme2")[1].query("module == 'stem.0'")
    assert stem["also"].tolist() == ["", "stem.1"], "the ReLU is part of the convolution"
    assert stem["role"].tolist() == ["layout", "compute"]


def test_a_cast_that_xnnpack_put_in_costs_nobody_knows_what():
    casts = read("residual-fp16.a53")[1].query("role == 'cast'")
    assert casts["module"].tolist() == ["stem.0", "head"]
    assert casts[["shapes", "flops", "bytes"]].isna().all(axis=None)
