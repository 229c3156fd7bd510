"""Record traces of small networks on emulated Arm CPUs, with the true layers of every event.

    python tests/record_attribution.py QEMU RUNNER WHEEL [NETWORK ...]

QEMU is a qemu-aarch64 of 10.1 or later, RUNNER the workbench's runner compiled for aarch64, WHEEL
the executorch package of the unpacked aarch64 wheel. The compiler is aarch64-linux-gnu-g++. Other
networks than those that are named keep their records.
"""

import gzip
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from layer_models import PROGRAMS, export_layers
from layer_truth import Record, probe_command, read_plans, true_modules, true_nodes

from workbench.analysis.ledger import build_ledger
from workbench.records.codec import parse_json, structure
from workbench.records.layer_sidecar import Layers
from workbench.trace.etdump import read_etdump

GOLDEN = Path(__file__).parent / "data" / "attribution"

#: What QEMU calls the CPU, and the ISA level.
CPUS = {
    "sme2": ("max", "native"),
    "sme": ("max", "sme"),
    "nosme": ("max", "nosme"),
    "a76": ("cortex-a76", "native"),
    "a53": ("cortex-a53", "native"),
}
LEFT_OUT = ("toy_cnn", "mobilenet", "mobilenet-fp16", "residual-wide")
ROOT = "/usr/aarch64-linux-gnu"


def main(qemu, runner, wheel, *names):
    old = json.loads((GOLDEN / "truth.json").read_text())
    truth = {trace: found for trace, found in old.items() if trace.partition(".")[0] in PROGRAMS}
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        probe = folder / "plan.so"
        subprocess.run(probe_command(["aarch64-linux-gnu-g++"], probe), check=True)
        for name in names or PROGRAMS:
            if name not in LEFT_OUT:
                export_layers(name, folder)
                for cpu in CPUS:
                    command = [qemu, "-L", ROOT, "-cpu", CPUS[cpu][0], "-E", f"LD_PRELOAD={probe}"]
                    command += ["-E", f"XNN_PLAN={folder / 'plan.txt'}", runner]
                    command += ["--lib_dir", f"{wheel}/lib", "--isa", CPUS[cpu][1]]
                    truth[f"{name}.{cpu}"] = record(name, cpu, folder, command)
    write_truth(truth)


def record(name, cpu, folder, command):
    """Write one trace, ``<name>.<cpu>.etdump``; the modules that each of its rows may be of."""
    plan, etdump = folder / "plan.txt", GOLDEN / f"{name}.{cpu}.etdump"
    plan.write_text("")
    command = [*command, "--cpu_threads", "1", "--model_path", str(folder / f"{name}.pte")]
    command += ["--inputs", str(folder / f"{name}.input"), "--etdump_path", str(etdump)]
    subprocess.run(command, check=True, capture_output=True)
    text = (folder / f"{name}.layers.json").read_text()
    (GOLDEN / f"{name}.layers.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
    layers, ledger = (
        structure(Layers, parse_json(text, name), name),
        build_ledger(read_etdump(etdump)),
    )
    pte, plans = (folder / f"{name}.pte").read_bytes(), read_plans(plan.read_text())
    nodes = true_nodes(pte, layers, plans, ledger)
    return true_modules(layers, nodes, Record(folder / f"{name}.etrecord"), ledger)


def write_truth(truth):
    """All traces in one file, a line each."""
    lines = [
        f"{json.dumps(trace)}: {json.dumps({key: sorted(found) for key, found in rows.items()})}"
        for trace, rows in truth.items()
    ]
    (GOLDEN / "truth.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
