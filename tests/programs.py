"""Small programs for tests; ``python tests/programs.py`` records them in ``data/programs``."""

import hashlib
import warnings
from importlib import metadata
from pathlib import Path

RECORDED = Path(__file__).parent / "data" / "programs"


def export_conv():
    import torch
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    class Conv(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.features = torch.nn.Sequential(
                torch.nn.Conv2d(3, 32, 3, padding=1),
                torch.nn.ReLU(),
                torch.nn.Conv2d(32, 64, 3, padding=1, stride=2),
                torch.nn.ReLU(),
            )
            self.classify = torch.nn.Linear(64, 10)

        def forward(self, x):
            return self.classify(self.features(x).mean((2, 3)))

    torch.manual_seed(0)
    exported = torch.export.export(Conv().eval(), (torch.ones(1, 3, 64, 64),))
    lowered = to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()])
    return lowered.to_executorch().buffer


def export_pair(planned=True):
    """Two inputs and outputs of several dtypes; a second method takes a number."""
    import torch
    from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
    from executorch.exir.passes import MemoryPlanningPass

    class Pair(torch.nn.Module):
        def forward(self, x, index):
            return x.to(torch.float16) + 1, index * 2

    class Times(torch.nn.Module):
        def forward(self, x, n: int):
            return x * n

    methods = {
        "forward": torch.export.export(Pair(), (torch.ones(2, 3), torch.arange(4))),
        "times": torch.export.export(Times(), (torch.ones(2), 3)),
    }
    plan = MemoryPlanningPass(alloc_graph_input=planned, alloc_graph_output=planned)
    config = ExecutorchBackendConfig(memory_planning_pass=plan)
    return to_edge_transform_and_lower(methods).to_executorch(config).buffer


def export_outside():
    """A linear layer with its weights in a separate file."""
    import torch
    from executorch.exir import ExecutorchBackendConfig, to_edge

    class Twos(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.full((2, 3), 2.0))

        def forward(self, x):
            return x @ self.weight.t()

    edge = to_edge(torch.export.export(Twos(), (torch.ones(1, 3),)))
    program = edge.to_executorch(ExecutorchBackendConfig(external_constants=True))
    (data,) = program._tensor_data.values()
    return program.buffer, bytes(data)


EXPORTS = {
    "conv": export_conv,
    "pair": export_pair,
    "unplanned": lambda: export_pair(planned=False),
    "outside": lambda: export_outside()[0],
    "outside_data": lambda: export_outside()[1],
}


def identify() -> str:
    """A hash of this file, and of the versions that export."""
    versions = "".join(metadata.version(package) for package in ("executorch", "torch"))
    return hashlib.sha256(Path(__file__).read_bytes() + versions.encode()).hexdigest()[:12]


def is_current() -> bool:
    """Whether the recorded programs are those that an export would make now."""
    return (RECORDED / "made_by").read_text() == identify()


def export(name: str, path: Path) -> None:
    """Export a program; another process may do the same."""
    partial = path.with_suffix(".partial")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        partial.write_bytes(EXPORTS[name]())
    partial.replace(path)


if __name__ == "__main__":
    RECORDED.mkdir(exist_ok=True)
    for name in EXPORTS:
        export(name, RECORDED / f"{name}.pte")
    (RECORDED / "made_by").write_text(identify())
