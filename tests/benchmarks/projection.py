"""Is latency with AVX-512 on predicted from the run with it off and an atlas?

Networks that are not in the zoo, with random weights, are measured with AVX-512 off and on; the
first is projected by the atlas of this machine (``workbench atlas``), without its operators of
the same kind and sizes as one of the network. Prints the table, and exits 1 unless, of the networks
that no size of the atlas and no constant was chosen with, four of five are within 10 %. With
``--keep``, programs and runs stay, and are not made again. Networks of libraries that are not
installed are named and left out.

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
import torch

import workbench as wb
from workbench.plugins.project.atlas import atlas_path, describe_operators, load_atlas
from workbench.records.codec import to_json
from workbench.run.ceilings import device_of

#: Three constants were set with the first eight; the last two prompted sizes of the atlas.
TUNED = (
    "torchvision:resnet18", "torchvision:squeezenet1_1", "timm:lcnet_050", "timm:tinynet_e",
    "timm:resnet10t", "timm:ghostnet_100", "timm:mixer_s32_224", "torchvision:shufflenet_v2_x1_0",
    "torchvision:regnet_y_400mf",
)  # fmt: skip
#: Types of configurations of transformers, what differs from their defaults, and the input.
TEXT, IMAGE = {"vocab_size": 8192}, ("pixel_values", 3, 224, 224)
SMALL = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4}
TRANSFORMERS = {
    "bert": (SMALL | TEXT | {"intermediate_size": 1024}, ("inputs_embeds", 128, 256)),
    "electra": (TEXT | {"num_hidden_layers": 6}, ("inputs_embeds", 64, 128)),
    "distilbert": (TEXT | {"n_layers": 2}, ("inputs_embeds", 64, 768)),
    "squeezebert": (TEXT | {"num_hidden_layers": 3}, ("inputs_embeds", 64, 768)),
    "gpt2": (TEXT | {"n_embd": 384, "n_layer": 4, "n_head": 6}, ("inputs_embeds", 96, 384)),
    "llama": (SMALL | TEXT | {"intermediate_size": 688}, ("inputs_embeds", 64, 256)),
    "qwen2": (
        SMALL | TEXT | {"num_key_value_heads": 2, "intermediate_size": 1280},
        ("inputs_embeds", 32, 256),
    ),
    "vit": (SMALL | {"intermediate_size": 768}, IMAGE),
    "dinov2": (SMALL | {"image_size": 224}, IMAGE),
    "segformer": ({}, IMAGE),
    "mobilevit": ({"image_size": 224}, IMAGE),
    "convnextv2": ({"hidden_sizes": [40, 80, 160, 320], "depths": [2, 2, 6, 2]}, IMAGE),
    "mobilenet_v1": ({}, IMAGE),
    "resnet": ({"layer_type": "basic", "hidden_sizes": [48, 96, 192, 384]}, IMAGE),
    "pvt_v2": ({"image_size": 224}, IMAGE),
}
NAMES = (
    *TUNED, "torchvision:mnasnet0_5", "torchvision:mobilenet_v2", "torchvision:googlenet",
    "torchvision:shufflenet_v2_x0_5", "torchvision:efficientnet_b0", "torchvision:densenet121",
    "timm:mobilenetv4_conv_small", "timm:convnext_atto", "timm:deit_tiny_patch16_224",
    "timm:levit_128s", "timm:mobilevit_xxs", "timm:poolformer_s12", "timm:edgenext_xx_small",
    "timm:repvgg_a0", "timm:ese_vovnet19b_dw", "timm:regnetx_002", "timm:regnety_002",
    "timm:semnasnet_050", "timm:mobileone_s0", "timm:efficientvit_b0", "timm:fastvit_t8",
    "timm:hardcorenas_a", "timm:xcit_nano_12_p16_224", "timm:resnet26d", "timm:cs3darknet_s",
    "timm:pit_ti_224", *(f"transformers:{name}" for name in TRANSFORMERS),
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


class Transformer(torch.nn.Module):
    """A network of transformers from a tensor: what its last layer computes."""

    def __init__(self, kind):
        super().__init__()
        from transformers import AutoConfig, AutoModel

        changes, (self.input, *self.shape) = TRANSFORMERS[kind]
        config = AutoConfig.for_model(kind, **changes)
        config.use_cache = False
        self.model = AutoModel.from_config(config, attn_implementation="eager")

    def forward(self, x):
        return self.model(**{self.input: x})[0]


def load(name):
    """What `wb.measure` takes of a network: its name, or a module with its inputs."""
    library, kind = name.split(":")
    if library != "transformers":
        return name, None
    torch.manual_seed(0)  # as kept
    net = Transformer(kind).eval()
    return net, torch.randn(1, *net.shape)


def check_network(name, run):
    """A row of the model, and its operators with projected and measured times."""
    off, on = run.compare().baseline, run.compare().candidate
    table = project_left_out(off, on.experiment.isa)
    model, measured = table.iloc[0], on.latency_ms
    row = {
        "network": name, "off_ms": off.latency_ms, "on_ms": measured,
        "projected_ms": model["projected_ms"], "low_ms": model["projected_low_ms"],
        "high_ms": model["projected_high_ms"], "error": model["projected_ms"] / measured - 1,
        "covered": model["projected_low_ms"] <= measured <= model["projected_high_ms"],
    }  # fmt: skip
    return row, table[1:].merge(on.operators[["key", "mean_ms"]], on="key")


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
                root = (options.keep or Path(folder)) / name.replace(":", "_")
                run = wb.measure(*load(name), OPTIONS, root=root, again=False, artifacts=False)
                row, parts = check_network(name, run)
            except (wb.WorkbenchError, ImportError) as error:
                print(f"{name}: {error}", flush=True)
                continue
            print(f"{name}: {row['error']:+.1%}, load {os.getloadavg()[0]:.1f}", flush=True)
            rows.append(row)
            operators.append(parts.assign(network=name))
    if not rows:
        return 1
    table, parts = pd.DataFrame(rows), pd.concat(operators)
    print(table.round(3).to_string(index=False))
    tuned = [name in TUNED for name in table["network"]]
    results = [summarize(table[tuned], parts), summarize(table[~np.array(tuned)], parts)]
    for name, (_, text) in zip(("sizes or constants chosen with", "others"), results, strict=True):
        print(f"{name}: {text}")
    return int(not results[1][0] >= 0.8)


def summarize(table, parts):
    """The share of networks within 10 %, and all that is claimed of them."""
    near, count = (table["error"].abs() <= 0.1).mean(), len(table)
    parts = parts[(parts["mean_ms"] >= 0.01) & parts["network"].isin(table["network"])]
    error = (parts["projected_ms"] / parts["mean_ms"] - 1).abs().median()
    covered = parts["mean_ms"].between(parts["projected_low_ms"], parts["projected_high_ms"]).mean()
    text = f"{near:.0%} of {count} networks within 10 %, {table['covered'].mean():.0%} covered; "
    text += (
        f"{len(parts)} operators of 10 us or more: median error {error:.1%}, {covered:.0%} covered"
    )
    return near, text


if __name__ == "__main__":
    sys.exit(main())
