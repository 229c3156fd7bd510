"""A program: an opened ``.pte``, or one that was just emitted."""

from __future__ import annotations

import contextlib
import mmap
import os
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from workbench import plugin, store
from workbench.errors import StoreError, WorkbenchError
from workbench.export.bundled import unpack
from workbench.export.sidecar import needs_data, outline_pte
from workbench.frames import DEPENDENCE
from workbench.options import RUNTIMES
from workbench.progress import is_interactive
from workbench.records.exports import Export, Tensor
from workbench.records.layer_sidecar import Layers
from workbench.shown import show_noun
from workbench.upstream import tree_flatten, tree_map_tensors, tree_unflatten
from workbench.wording import format_size

if TYPE_CHECKING:
    import pandas as pd
    import torch
    from torch import nn


@dataclass(frozen=True)
class Program:
    """An opened ``.pte``, from `export_model` or `open_program`, or a side of another runtime.

    ``export`` is the record of its export, None for a program of unknown origin; ``sha256`` is
    computed once for each state of the file. A bundled program has inputs, and outputs that are
    ``expected``. ``data`` is the ``.ptd`` file with its weights, if these are not in the program;
    ``name`` is what it is called in a run, if not by its model and file.

    Examples
    --------
    >>> program = wb.export_model("toy_cnn")  # doctest: +SKIP
    >>> program.sha256[:8], program.methods  # doctest: +SKIP
    ('3f1c9d20', ('forward',))
    """

    #: Endings of the files of programs, bare and bundled.
    SUFFIXES: ClassVar[tuple[str, ...]] = (".pte", ".bp", ".bpte")

    path: Path
    sha256: str
    export: Export | None = None
    size_bytes: int = field(default=0, repr=False, compare=False)
    bundled: tuple[Tensor, ...] = ()
    expected: tuple[Tensor, ...] = ()
    data: Path | None = None
    name: str = ""

    @property
    def model(self) -> str:
        """Its name, or that of its model, or of its file."""
        model = self.export.model if self.export else store.safe_name(self.path.stem)
        return self.name or model

    @property
    def runtime(self) -> str:
        """The other runtime that executes it, by its name; empty for ExecuTorch."""
        ending = self.path.stem.rpartition(".")[2]
        if self.path.suffix not in self.SUFFIXES and ending in RUNTIMES:
            return ending
        return "onnx" if self.path.suffix == ".onnx" else ""

    @property
    def stem(self) -> str:
        """The beginning of the names of files that are made of it."""
        ending = self.path.stem.rpartition(".")[2]
        return store.safe_name(self.name or (ending if self.runtime == ending else self.path.stem))

    @property
    def root(self) -> Path:
        """The output folder that it belongs to."""
        folder = self.path.parent
        return (
            folder.parent
            if folder == store.artifacts_dir(folder.parent)
            else store.default_root(self.path.stem)
        )

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The inputs that were saved with it."""
        return self.export.inputs if self.export else self.bundled

    @cached_property
    def layers(self) -> Layers | None:
        """What its instructions were in the model; None if only the runtime can read it.

        Without a sidecar: shapes and costs, and layers if its ETRecord is beside it
        (``<program>.pte.etrecord``, ``<program>.etrecord`` or ``etrecord.bin``).
        """
        if sidecar := store.load_layers(store.layers_path(self.path), self.sha256):
            return sidecar
        if self.runtime or not self.size_bytes:
            return None
        with self.path.open("rb") as file:
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        for etrecord in (*list_etrecords(self.path), None):
            with contextlib.suppress(WorkbenchError):
                return outline_pte(data, self.path, sha256=self.sha256, etrecord=etrecord)
        return None

    @property
    def methods(self) -> tuple[str, ...]:
        """The names of its methods; empty if only the runtime can read it."""
        return tuple(method.name for method in self.layers.methods) if self.layers else ()

    @cached_property
    def dependence(self) -> pd.DataFrame:
        """Which inputs and mutable buffers each operator of the model depends on.

        As ``frames.DEPENDENCE``; empty if the program's export did not record them.
        """
        import pandas as pd

        methods = self.layers.methods[:1] if self.layers else ()
        origins = {origin.traced: origin for method in methods for origin in method.origins}
        rows = []
        for cone in self.export.dependence if self.export else ():
            facts = ", ".join(cone.inputs), ", ".join(cone.buffers), cone.random
            for node in cone.nodes:
                origin = origins.get(node)
                place = (origin.module, origin.source) if origin else (None, None)
                rows.append((node, "operator", *place, *facts))
            rows += [(state, "buffer", None, None, *facts) for state in cone.states]
        return DEPENDENCE.check(pd.DataFrame(rows, columns=DEPENDENCE.names))

    def keep_layers(self, path: Path) -> None:
        """Copy its sidecar to a file, or make one there."""
        sidecar = store.layers_path(self.path)
        if sidecar.exists():
            store.atomic_write(path, sidecar.read_bytes())
        elif self.layers:
            store.save_layers(self.layers, path)

    def check_unchanged(self, data_sha256: str = "") -> None:
        """StoreError if its file, or that of its weights, is another one than was planned."""
        planned = {self.path: self.sha256}
        if self.data and data_sha256:
            planned[self.data] = data_sha256
        for path, sha256 in planned.items():
            if not path.is_file() or store.sha256_of(path) != sha256:
                hint = "was it exported again? give each export a folder of its own: --out"
                raise StoreError("changed since the run was planned", where=path, hint=hint)

    def __fspath__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        made = f", {self.export.backend} {self.export.dtype}" if self.export else ""
        return f"<Program {self.path}{made}, {format_size(self.size_bytes)}>"

    @property
    def facts(self) -> dict[str, str]:
        """What is known of it, in words."""
        inputs = ", ".join(f"{t.dtype} {'x'.join(map(str, t.shape))}" for t in self.inputs)
        facts = {"file": self.path.name, "size": f"{format_size(self.size_bytes)}"}
        facts |= {"SHA-256": self.sha256[:16], "methods": ", ".join(self.methods)}
        facts |= {"inputs": inputs}
        if export := self.export:
            facts |= {"model": export.model, "exported as": f"{export.backend} {export.dtype}"}
            facts |= {"problem": export.problem}
        return {name: text for name, text in facts.items() if text}

    def _ipython_display_(self) -> None:
        from IPython.display import display

        widget = plugin.find("attributes", "workbench.ProgramMap") if is_interactive() else None
        display((widget or show_noun)(self))


def list_etrecords(pte: Path) -> list[Path]:
    """The ETRecords beside a program, the likeliest first."""
    names = (f"{pte.name}.etrecord", f"{pte.stem}.etrecord", store.ETRECORD)
    return list(filter(Path.is_file, map(pte.with_name, names)))


#: The name of the file that ExecuTorch writes external weights to.
_EXTERNAL = "_default_external_constant.ptd"


def find_data(pte: Path) -> Path | None:
    """The file beside a program that has its weights, if these are not in the program."""
    files = sorted(pte.parent.glob("*.ptd"))
    if not files:
        return None
    with pte.open("rb") as file, contextlib.suppress(ValueError, WorkbenchError):
        data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        if not needs_data(data):
            return None
    named = [each for each in map(pte.with_name, (f"{pte.stem}.ptd", _EXTERNAL)) if each in files]
    return next(iter(named), files[0] if len(files) == 1 else None)


def open_program(pte: Program | str | os.PathLike[str]) -> Program:
    """Open a ``.pte``, with the record of its export if that is beside it, or a bundled program.

    So are its weights, in a ``.ptd`` file, if they are not in the program.

    Raises
    ------
    StoreError
        There is no such file, or it is not the one that its record describes.

    Examples
    --------
    >>> wb.open_program("model.pte").methods  # doctest: +SKIP
    ('forward',)
    """
    if isinstance(pte, Program):
        return pte
    path = Path(pte)
    if not path.is_file():
        raise StoreError("no such file", where=path, hint="workbench export MODEL makes one")
    bundled: tuple[Tensor, ...] = ()
    expected: tuple[Tensor, ...] = ()
    if path.suffix in Program.SUFFIXES[1:]:
        path, bundled, expected = unpack(path)
    record = store.export_record_path(path)
    export = store.load_record(Export, record) if record.is_file() else None
    sha256 = store.sha256_of(path)
    if export and sha256 != export.sha256:
        raise StoreError(
            f"is not the program that {record.name} describes (SHA-256 differs)",
            where=path,
            hint="export it again, or delete the record to run it as a foreign program",
        )
    size, data = path.stat().st_size, find_data(path)
    return Program(path, sha256, export, size, bundled, expected, data)


def cast_floats(values: Any, dtype: torch.dtype) -> Any:
    """Nested values with all floating-point tensors in ``dtype``."""

    def cast(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    return tree_map_tensors(cast, values)


def bind_constants(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """A module that takes tensors only, and its arguments.

    ``torch.export`` leaves numbers, flags and None in the signature: a runner had to pass them.
    """
    import torch

    leaves, structure = tree_flatten((args, kwargs))
    if all(isinstance(leaf, torch.Tensor) for leaf in leaves):
        return module, args, kwargs

    class Bound(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = module

        def forward(self, *tensors: torch.Tensor) -> Any:
            given = iter(tensors)
            filled = [next(given) if isinstance(x, torch.Tensor) else x for x in leaves]
            args, kwargs = tree_unflatten(filled, structure)
            return self.model(*args, **kwargs)

    return Bound(), tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor)), {}


def raw_bytes(tensor: torch.Tensor, dim_order: tuple[int, ...]) -> bytes:
    """The elements of a tensor with its dimensions in ``dim_order``, the slowest first."""
    import torch

    laid_out = tensor.detach().cpu().permute(dim_order).contiguous()
    return laid_out.reshape(-1).view(torch.uint8).numpy().tobytes()
