"""Other inputs to run a model with: arrays, seeded noise, other sizes.

Files may come from untrusted sources: nothing is unpickled, and no claimed size is allocated.
"""

import hashlib
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.export import Dim

from workbench.errors import UsageError, unknown_name
from workbench.models.loader import Call, LoadedModel, load_tensors, try_forward
from workbench.models.sources import MOST_SAMPLES, RANDOM, sample_files
from workbench.options import ExportOptions
from workbench.upstream import (
    tree_flatten,
    tree_leaves,
    tree_map,
    tree_map_tensors,
    tree_unflatten,
)


def choose_inputs(model: LoadedModel, options: ExportOptions) -> LoadedModel:
    """The model with the inputs of ``options``, if there are any, in their memory layout.

    ``options.inputs`` has a source for each tensor of ``forward``, in order: an array file, a
    folder of these, or ``random:SEED``. A file of several tensors serves several inputs;
    ``random:SEED`` alone serves all. An array with more rows than the input, or one more dimension,
    holds several samples: the first is run, the others calibrate. ``options.sizes`` are run; the
    model is still exported from its example. It is a `UsageError` if a source cannot be read or
    does not fit, a `WorkbenchError` if the model fails on it.
    """
    sizes = dict(options.sizes)
    if sizes:
        model = _resize(model, sizes)
    if options.inputs:
        model = _fill(model, options)
    if sizes:
        text = ", ".join(f"{name}={size}" for name, size in sorted(sizes.items()))
        model = replace(model, input_source=f"{model.input_source}, at {text}")
    if sizes or options.inputs:
        try_forward(model)
    return _lay_out_channels_last(model) if options.channels_last else model


def _lay_out_channels_last(model: LoadedModel) -> LoadedModel:
    """The model with inputs of four dimensions that are channels last in memory."""

    def lay_out(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor

    names = ("example_inputs", "kwargs", "calibration", "traced_inputs")
    values = {name: tree_map_tensors(lay_out, getattr(model, name)) for name in names}
    return replace(model, **values)


def _resize(model: LoadedModel, sizes: dict[str, int]) -> LoadedModel:
    """Repeat or cut the example along some dimensions, which keeps its values valid."""
    dimensions = _find_dimensions(model)
    names = {_root(d).__name__ for axes in dimensions.values() for d in axes.values()}
    if unknown := sizes.keys() - names:
        raise unknown_name("dynamic dimension", min(unknown), names, model.origin)

    def resize(leaf: Any) -> Any:
        for axis, dimension in dimensions.get(id(leaf), {}).items():
            root = _root(dimension)
            if (size := sizes.get(root.__name__)) is None:
                continue
            if not root.min <= size <= root.max:
                text = f"{size} is not within {root.min} to {root.max}"
                raise UsageError(text, where=f"--size {root.__name__}")
            size = size if root is dimension else dimension.fn(size)
            leaf = leaf.index_select(axis, torch.arange(size) % leaf.shape[axis])
        return leaf

    example = (model.example_inputs, model.kwargs)
    args, kwargs = tree_map(resize, example)
    traced = None if model.dynamic_shapes is None else example
    return replace(model, example_inputs=args, kwargs=kwargs, calibration=(), traced_inputs=traced)


def name_dimensions(model: LoadedModel) -> list[tuple[str, ...]]:
    """The names of the dimensions of each input tensor, empty for fixed ones."""
    dimensions = _find_dimensions(model)
    leaves = _tensors((model.example_inputs, model.kwargs))
    named = [(leaf.ndim, dimensions.get(id(leaf), {})) for leaf in leaves]
    return [
        tuple(getattr(axes.get(axis), "__name__", "") for axis in range(count))
        for count, axes in named
    ]


def declare_limits(model: LoadedModel) -> list[list[tuple[str, int]]]:
    """The name and the declared limit of each dimension of each input tensor.

    The name is empty for fixed ones.
    """
    dimensions = {} if model.dynamic_shapes is None else _find_dimensions(model)
    declared = []
    for leaf in _tensors((model.example_inputs, model.kwargs)):
        axes = dimensions.get(id(leaf), {})
        declared.append(
            [(axes[a].__name__, axes[a].max) if a in axes else ("", 0) for a in range(leaf.ndim)]
        )
    return declared


def _tensors(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def _find_dimensions(model: LoadedModel) -> dict[int, dict[int, Any]]:
    """The dimensions of each tensor by its ``id`` and their axes; of fixed ones, batch and size."""
    shapes = model.dynamic_shapes
    if shapes is None:
        batch, size = (Dim(name, min=1, max=2**31) for name in ("batch", "size"))
        axes = {0: batch, 2: size, 3: size}
        tensors = _tensors((model.example_inputs, model.kwargs))
        return {id(t): {a: d for a, d in axes.items() if t.ndim > max(a, 1)} for t in tensors}
    given = inspect.signature(model.module.forward).bind(*model.example_inputs, **model.kwargs)
    arguments = given.arguments if isinstance(shapes, dict) else tuple(given.arguments.values())
    return dict(_dimensions(arguments, shapes))


def _dimensions(value: Any, shapes: Any) -> Iterator[tuple[int, dict[int, Any]]]:
    """The ``id`` of each tensor in nested values, and its named dynamic dimensions by axis."""
    if isinstance(value, torch.Tensor):
        axes = shapes if isinstance(shapes, dict) else dict(enumerate(shapes or ()))
        # Dim.AUTO and the like have no name, and numbers are fixed sizes.
        yield id(value), {axis: d for axis, d in axes.items() if hasattr(d, "__name__")}
    elif isinstance(value, dict) and isinstance(shapes, dict):
        for key in value:
            yield from _dimensions(value[key], shapes.get(key))
    elif isinstance(value, list | tuple) and isinstance(shapes, list | tuple):
        for inner, shape in zip(value, shapes, strict=False):
            yield from _dimensions(inner, shape)


def _root(dimension: Any) -> Any:
    """The dimension from which another is derived, as in ``2 * batch``; or itself."""
    return getattr(dimension, "root", dimension)


def _fill(model: LoadedModel, options: ExportOptions) -> LoadedModel:
    leaves, structure = tree_flatten((model.example_inputs, model.kwargs))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    examples = [leaves[place] for place in places]
    samples = list(map(_split, _read_sources(options, examples, _names(model)), examples))
    counts = {len(each) for each in samples} - {1}
    if len(counts) > 1:
        raise UsageError(f"inputs of {' and '.join(map(str, sorted(counts)))} samples")
    count = max(counts, default=1)

    def call(number: int) -> Call:
        filled = list(leaves)
        for place, each in zip(places, samples, strict=True):
            filled[place] = each[number % len(each)]
        args, kwargs = tree_unflatten(filled, structure)
        return args, kwargs

    args, kwargs = call(0)
    calibration, described = tuple(map(call, range(1, count))), _describe(options, count)
    model = replace(model, calibration=calibration, input_source=described)
    return replace(model, example_inputs=args, kwargs=kwargs)


def _names(model: LoadedModel) -> list[str]:
    """The names of the tensors that ``forward`` takes; of nested ones, the argument's name."""
    parameters = list(inspect.signature(model.module.forward).parameters)
    # The last one may be *tensors.
    parameters += parameters[-1:] * len(model.example_inputs)
    pairs = [*zip(parameters, model.example_inputs, strict=False), *model.kwargs.items()]
    return [name for name, value in pairs for _ in _tensors(value)]


def _read_sources(
    options: ExportOptions, examples: list[torch.Tensor], names: list[str]
) -> list[tuple[torch.Tensor, str]]:
    """A tensor for each example, and its source."""
    read: list[tuple[torch.Tensor, str]] = []
    unused = list(options.inputs)
    while unused and len(read) < len(examples):
        source, missing = unused.pop(0), examples[len(read) :]
        if random := RANDOM.fullmatch(source):
            generator = torch.Generator().manual_seed(int(random[1]))
            wanted = missing if len(options.inputs) == 1 else missing[:1]
            read += [(_noise(example, generator), source) for example in wanted]
        else:
            if Path(source).is_dir():
                each = (read_arrays(str(file)) for file in sample_files([source]))
                arrays = {str(n): t for n, held in enumerate(each) for t in held.values()}
            else:
                arrays = read_arrays(source)
            # Samples of the only input, by number.
            if len(examples) == 1 < len(arrays) and set(arrays) == set(
                map(str, range(len(arrays)))
            ):
                arrays = {"0": _join(list(arrays.values()), examples[0], source)}
            if len(arrays) > 1 and set(arrays) == set(names):
                arrays = {name: arrays[name] for name in names}
            read += [(tensor, source) for tensor in arrays.values()]
    if len(read) != len(examples) or unused:
        given = f"{len(read)} tensors" + (f", {', '.join(unused)} left over" if unused else "")
        taken = f"{len(examples)}: {', '.join(names)}"
        raise UsageError(f"{given}; forward() takes {taken}", where="--inputs")
    return read


def _join(samples: list[torch.Tensor], example: torch.Tensor, source: str) -> torch.Tensor:
    """Samples of one input, each with or without its batch, along the first dimension."""
    if len(shapes := {tuple(sample.shape) for sample in samples}) > 1:
        text = f"samples of shapes {' and '.join(map(str, sorted(shapes)))}"
        raise UsageError(text, where=source, hint="use one shape")
    return (torch.cat if samples[0].ndim == example.ndim else torch.stack)(samples)


def _noise(like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Noise of the shape and dtype of an example; integers stay within the example's range."""
    if like.is_floating_point():
        return torch.randn(like.shape, generator=generator).to(like.dtype)
    is_plain = like.dtype == torch.bool or not like.numel()
    low, high = (0, 1) if is_plain else (int(like.min()), int(like.max()))
    return torch.randint(low, high + 1, like.shape, generator=generator).to(like.dtype)


def read_arrays(source: str) -> dict[str, torch.Tensor]:
    """The tensors of an array file by name, or by number where they have none.

    It is a `UsageError` if the file is malformed, or contains anything but tensors.
    """
    (path,) = sample_files([source])
    with _explain_decoding(path):
        if path.suffix.lower() == ".npy":
            # A map is no larger than the file: a header that claims more is rejected before
            # anything is allocated. Pickled objects cannot be mapped at all.
            return {"0": torch.from_numpy(np.load(path, mmap_mode="c", allow_pickle=False))}
        return _name_tensors(load_tensors(path), path.stat().st_size)


def _name_tensors(held: Any, size_bytes: int) -> dict[str, torch.Tensor]:
    if isinstance(held, torch.Tensor):
        held = (held,)
    if isinstance(held, list | tuple):
        held = dict(enumerate(held))
    if not isinstance(held, dict) or not held:
        raise ValueError(f"it contains a {type(held).__name__}, no tensors")
    for name, value in held.items():
        is_dense = isinstance(value, torch.Tensor) and value.layout == torch.strided
        if not is_dense or value.is_quantized or value.is_nested or value.is_meta:
            raise ValueError(f"its {name!r} is not a dense tensor")
    if sum(value.nbytes for value in held.values()) > size_bytes:
        raise ValueError("its tensors share or repeat values; save them with .clone()")
    return {str(name): value for name, value in held.items()}


@contextmanager
def _explain_decoding(path: Path) -> Iterator[None]:
    """Turn what a decoder raises into a `UsageError` that names the file."""
    try:
        yield
    except Exception as error:  # each decoder raises its own types
        text = " ".join(str(error).split())[:200]
        raise UsageError(f"cannot be read: {text or type(error).__name__}", where=path) from None


def _split(read: tuple[torch.Tensor, str], example: torch.Tensor) -> list[torch.Tensor]:
    """The samples in a tensor, each of the example's shape and dtype."""
    tensor, where = read
    shape, wanted = tuple(tensor.shape), tuple(example.shape)
    samples: list[torch.Tensor] = []
    if shape == wanted:
        samples = [tensor]
    elif shape[1:] == wanted:
        samples = list(tensor[:MOST_SAMPLES])
    elif shape and wanted[:1] and shape[1:] == wanted[1:] and not shape[0] % (wanted[0] or 1):
        samples = list(tensor[: MOST_SAMPLES * wanted[0]].split(wanted[0]))
    if not samples or (not wanted and len(shape) > 1):
        hint = "put several samples along the first dimension; --size changes dynamic ones"
        raise UsageError(f"shape {shape}, the model takes {wanted}", where=where, hint=hint)
    return [_cast(sample, example.dtype, where) for sample in samples]


def _cast(tensor: torch.Tensor, dtype: torch.dtype, where: str) -> torch.Tensor:
    """The tensor in the model's dtype, if only precision is lost."""
    if tensor.is_complex() or tensor.is_floating_point() != dtype.is_floating_point:
        text = f"{tensor.dtype}, the model takes {dtype}".replace("torch.", "")
        hint = "convert it as your application does, including the scaling"
        raise UsageError(text, where=where, hint=hint)
    cast = tensor.detach().to(dtype).contiguous()
    if not dtype.is_floating_point and not torch.equal(cast.to(tensor.dtype), tensor):
        raise UsageError(f"values beyond {str(dtype).removeprefix('torch.')}", where=where)
    # An infinity may be intended, as in masks; one that the cast makes is not.
    overflown = torch.isinf(cast) & torch.isfinite(tensor.double())
    if bool((torch.isnan(cast) | overflown).any()):
        raise UsageError("has values that are not numbers in the model's dtype", where=where)
    return cast


def _describe(options: ExportOptions, count: int) -> str:
    texts = []
    for source in options.inputs:
        hashes = [hashlib.sha256(file.read_bytes()) for file in sample_files([source])]
        if len(hashes) > 1:
            digest = hashlib.sha256(b"".join(each.digest() for each in hashes)).hexdigest()[:16]
            source += f" ({len(hashes)} files, SHA-256 {digest} of their SHA-256)"
        elif hashes:
            source += f" (SHA-256 {hashes[0].hexdigest()[:16]})"
        texts.append(source)
    return ", ".join(texts) + (f"; the first of {count} samples" if count > 1 else "")
