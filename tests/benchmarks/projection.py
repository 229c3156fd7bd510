"""Is latency with AVX-512 on predicted from the run with it off and an atlas?

Networks that are not in the zoo, with random weights, are measured with AVX-512 off and on; the
first is projected by the atlas of this machine (``workbench atlas``), without its operators of
the same kind and sizes as one of the network. Prints the table, and exits 1 unless four of five are
within 10 %. With ``--keep``, programs and runs stay, and are not made again.

    python tests/benchmarks/projection.py [--keep FOLDER] [NAME...]
"""

import argparse
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pandas as pd

import workbench as wb
from workbench.analysis.atlas import atlas_path, describe_operators, load_atlas
from workbench.records.codec import to_json
from workbench.run.ceilings import device_of

NAMES = (
    "torchvision:resnet18", "torchvision:squeezenet1_1", "torchvision:shufflenet_v2_x1_0",
    "timm:lcnet_050", "timm:tinynet_e", "timm:resnet10t", "timm:ghostnet_100",
    "timm:mixer_s32_224", "torchvision:mnasnet0_5", "torchvision:mobilenet_v2",
    "torchvision:regnet_y_400mf", "torchvision:googlenet", "timm:mobilenetv4_conv_small",
    "timm:convnext_atto", "timm:deit_tiny_patch16_224", "timm:levit_128s", "timm:mobilevit_xxs",
    "timm:poolformer_s12", "timm:edgenext_xx_small", "timm:repvgg_a0", "timm:ese_vovnet19b_dw",
    "timm:regnetx_002", "timm:regnety_002", "torchvision:shufflenet_v2_x0_5",
    "timm:semnasnet_050", "timm:mobileone_s0",
)  # fmt: skip
OPTIONS = wb.MeasureOptions(runs=10, processes=3, cold_start=False, evidence=False)


def project_left_out(measurement, level):
    """Project by an atlas that has none of a measurement's operators."""
    record = measurement.run.record
    known = load_atlas(atlas_path(device_of(record.host, record.runner)))
    rows = describe_operators(measurement)[["kind", "m", "n", "k", "bytes"]].fillna(0.0)
    # Of depthwise convolutions, and of what is no product, only the bytes tell the sizes.
    tested = {row[:4] if row[2] > 1 else row for row in rows.itertuples(index=False, name=None)}
    described = [
        (kind, *sizes[:3]) if sizes[1] > 1 else (kind, *sizes[:3], sizes[4])
        for kind, sizes in zip(known.kinds, known.sizes, strict=True)
    ]
    kept = [number for number, row in enumerate(described) if row not in tested]
    columns = {name: tuple(getattr(known, name)[i] for i in kept) for name in ("kinds", "sizes")}
    ms = {level: tuple(times[i] for i in kept) for level, times in known.ms.items()}
    with tempfile.TemporaryDirectory() as cache, patch.dict(os.environ, XDG_CACHE_HOME=cache):
        path = atlas_path(device_of(record.host, record.runner))
        path.parent.mkdir(parents=True)
        path.write_text(to_json(replace(known, **columns, ms=ms)))
        return measurement.project(level)


def check_network(name, folder):
    """A row of the model, and its operators with projected and measured times."""
    run = wb.measure(name, options=OPTIONS, root=folder / name.replace(":", "_"), artifacts=False)
    off, on = run.compare().baseline, run.compare().candidate
    table = project_left_out(off, on.experiment.isa)
    model, measured = table.iloc[0], on.latency_ms
    row = {
        "network": name, "off_ms": off.latency_ms, "on_ms": measured,
        "projected_ms": model["projected_ms"], "low_ms": model["low_ms"],
        "high_ms": model["high_ms"], "error": model["projected_ms"] / measured - 1,
        "covered": model["low_ms"] <= measured <= model["high_ms"],
    }  # fmt: skip
    return row, table[1:].merge(describe_operators(on)[["key", "ms"]], on="key")


def main():
    """Check the networks, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    rows, operators = [], []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.names:
            try:
                row, parts = check_network(name, options.keep or Path(folder))
            except wb.WorkbenchError as error:
                print(f"{name}: {error}", flush=True)
                continue
            rows.append(row)
            operators.append(parts.assign(network=name))
    table, parts = pd.DataFrame(rows), pd.concat(operators)
    if options.keep:
        parts.to_csv(options.keep / "operators.csv", index=False)
    parts = parts[parts["ms"] >= 0.01]
    error = (parts["projected_ms"] / parts["ms"] - 1).abs().median()
    covered = parts["ms"].between(parts["low_ms"], parts["high_ms"]).mean()
    near = (table["error"].abs() <= 0.1).mean()
    print(table.round(3).to_string(index=False))
    print(f"{near:.0%} of {len(table)} networks within 10 %, {table['covered'].mean():.0%} covered")
    print(
        f"{len(parts)} operators of 10 us or more: median error {error:.1%}, {covered:.0%} covered"
    )
    return int(np.isnan(error) or near < 0.8)


if __name__ == "__main__":
    sys.exit(main())
