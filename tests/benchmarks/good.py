"""Do findings about good networks keep their promises?

Networks of timm, torchvision and transformers, with random weights. Of each, the remedies of the
first three findings are tried on their parts; those that help are applied to the whole network,
which is measured interleaved with the network itself. A promise is false if its interval lies above
the measured one.

    python tests/benchmarks/good.py [--folder FOLDER] [--write PAGE] [NAME...]

With ``--folder``, exports and runs stay there, and the next call resumes. ``--write`` keeps the
rows of other networks. Exits with 1 if a promise was false.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from _pages import read_sections, write_section
from _runs import resume

import workbench as wb
from workbench.analysis.findings import text as words
from workbench.remedies import REMEDIES

TIMM = [
    "mobilenetv3_small_100",
    "mobilenetv2_050",
    "efficientnet_lite0",
    "resnet18",
    "regnetx_002",
    "repvgg_a0",
    "mnasnet_small",
    "fbnetc_100",
    "tinynet_e",
    "lcnet_050",
    "semnasnet_075",
    "ghostnet_100",
    "convnext_atto",
    "vit_tiny_patch16_224",
    "edgenext_xx_small",
]
TORCHVISION = ("squeezenet1_1", "shufflenet_v2_x0_5", "mobilenet_v3_small")
TRANSFORMERS = ("bert", "llama")
SECTION = "Good networks"
ABOUT = """What findings promise about networks of timm, torchvision and transformers with random
weights once their remedies were tried on parts, and what these bring to the whole network
(`tests/benchmarks/good.py`). A promise is kept if its interval is not above the measured one. AMD
EPYC, one of two shared cores.
"""


def build(name):
    """A network and its inputs."""
    torch.manual_seed(0)
    image = (torch.randn(1, 3, 224 if "vit" in name else 128, 224 if "vit" in name else 128),)
    if name in TIMM:
        import timm

        return timm.create_model(name, pretrained=False).eval(), image
    if name in TORCHVISION:
        import torchvision

        return torchvision.models.get_model(name, weights=None).eval(), image
    from transformers import AutoConfig, AutoModel

    sizes = {"hidden_size": 192, "intermediate_size": 768, "num_hidden_layers": 4}
    config = AutoConfig.for_model(
        name, num_attention_heads=3, vocab_size=1000, use_cache=False, **sizes
    )
    model = AutoModel.from_config(config, attn_implementation="eager").eval()

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, tokens):
            return self.model(tokens).last_hidden_state

    return Net().eval(), (torch.randint(0, 1000, (1, 64)),)


def fixes_of(findings):
    """What the export can do about the first three findings: the finding and options of each."""
    for finding in findings[:3]:
        if finding.remedy in REMEDIES:
            yield finding, {"rewrite": (finding.remedy,)}
        elif finding.remedy == "channels_last":
            yield finding, {"channels_last": True}


def judge(name, folder, options):
    """Rows of the table: what the findings of a network promised, and what came of it."""
    net, inputs = build(name)
    quiet = lambda text, fraction: None  # noqa: E731

    def export(place, **fix):
        chosen = wb.ExportOptions(**fix)
        return wb.export_model(net, inputs, chosen, name=name, root=place, progress=quiet)

    program = export(folder)
    run = resume(folder / "alone", [program], options)
    wb.check_findings(run, net, inputs, progress=quiet)
    subject = wb.open_run(run.path).subject
    rows = []
    for number, (finding, fix) in enumerate(fixes_of(subject.opportunities)):
        fixed = export(folder / f"fix{number}", **fix)
        run = resume(folder / f"run{number}", [program, fixed], options)
        sides = [run[each.name, 1] for each in run.record.plan.experiments][:2]
        row = wb.compare(*sides, across=["program"]).latency.iloc[0]
        ms = float(row["baseline_ms"])
        gain, low, high = (ms * (1 - 1 / float(row[end])) for end in ("speedup", "low", "high"))
        promise = finding.gain
        least, most = np.nan_to_num(promise.low), promise.high
        rows.append({
            "network": name,
            "latency ms": f"{ms:.3g}",
            "finding": finding.cause[:70],
            "fix": " ".join(f"{key}={value}" for key, value in fix.items()),
            "promised": words.abridge_gain(finding),
            "tried": finding.trial.answer if finding.trial else "no",
            "measured ms": f"{gain:.3g} [{low:.3g}, {high:.3g}]",
            "kept": "no" if least > high else "yes",
            "overlap": "yes" if low <= most and high >= least else "no",
        })  # fmt: skip
    first = {"network": name, "latency ms": f"{subject.latency_ms:.3g}"}
    return rows or [first | {"finding": "no fix by the export in the first three", "kept": "yes"}]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--write", type=Path, help="the page whose table gets these rows")
    parser.add_argument("names", nargs="*", default=[*TIMM, *TORCHVISION, *TRANSFORMERS])
    given = parser.parse_args()
    options = wb.MeasureOptions(toggle="none", runs=5, processes=3, evidence=False)
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for name in given.names:
            rows += judge(name, (given.folder or Path(scratch)) / name, options)
            print(rows[-1], flush=True)
    table = pd.DataFrame(rows).fillna("")
    print(table.to_markdown(index=False))
    false = int((table["kept"] == "no").sum())
    print(f"{false} of {len(table)} promises were false")
    if given.write:
        old = read_sections(given.write).get(SECTION, "")
        cells = (line.strip("|").split("|") for line in old.splitlines() if line.startswith("| "))
        head, *others = ([cell.strip() for cell in line] for line in cells)
        kept = [dict(zip(head, row, strict=True)) for row in others if row[0] not in given.names]
        table = pd.DataFrame([*kept, *rows]).fillna("")
        write_section(given.write, SECTION, f"{ABOUT}\n{table.to_markdown(index=False)}")
    raise SystemExit(int(false > 0))


if __name__ == "__main__":
    main()
