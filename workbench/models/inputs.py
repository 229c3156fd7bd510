"""Tensors from files that nobody vouches for: arrays, images, seeded noise.

The inputs to run a model with: other values, more samples, another size.
"""

from __future__ import annotations

import hashlib
import inspect
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.errors import UsageError, unknown_name
from workbench.models.loader import LoadedModel, try_forward

if TYPE_CHECKING:
    import numpy as np
    import torch


#: The most samples that are taken from one source; as many calibrate any model.
MOST_SAMPLES = 512

ARRAYS = (".npy", ".pt", ".pth", ".safetensors")
IMAGES = (".bmp", ".jpeg", ".jpg", ".png", ".ppm", ".webp")
FORMS = f"a file ({', '.join(ARRAYS)}), an image or a folder of images, or random:SEED"

_RANDOM = re.compile(r"random:(\d{1,18})")
_DECODERS = ("BMP", "JPEG", "PNG", "PPM", "WEBP")


def random_seed(source: str) -> int | None:
    """The seed of ``random:SEED``; None for other sources."""
    found = _RANDOM.fullmatch(source)
    return int(found[1]) if found else None


def sample_files(sources: Iterable[str]) -> list[Path]:
    """The files of some sources, those of a folder in the order of their names.

    Raises
    ------
    UsageError
        There are none, or of no known kind.
    """
    return [file for source in sources if random_seed(source) is None for file in _files_of(source)]


def read_arrays(source: str) -> dict[str, torch.Tensor] | None:
    """The tensors of an array file by name, or by number where they have none; None for others.

    Nothing is unpickled, and nothing is copied yet: a shape that a file claims costs no memory.

    Raises
    ------
    UsageError
        The file is malformed, or holds something else than tensors.
    """
    path = Path(source)
    if path.suffix.lower() not in ARRAYS:
        return None
    (path,) = sample_files([source])
    read = {".npy": _read_npy, ".safetensors": _read_safetensors}.get(path.suffix.lower(), _read_pt)
    with _refuse(path):
        return read(path)


def draw(like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Noise of the shape and dtype of an example; integers stay within the example's range."""
    import torch

    if like.is_floating_point():
        return torch.randn(like.shape, generator=generator).to(like.dtype)
    if like.dtype == torch.bool or not like.numel():
        return torch.randint(2, like.shape, generator=generator).to(like.dtype)
    low, high = int(like.min()), int(like.max())
    return torch.randint(low, high + 1, like.shape, generator=generator).to(like.dtype)


def read_images(
    source: str, shape: tuple[int, ...], mean: tuple[float, ...], std: tuple[float, ...]
) -> torch.Tensor:
    """Images as a tensor ``(images, channels, height, width)``, values 0 to 1 before mean and std.

    Each is scaled until it covers the size, and cropped at its centre.

    Parameters
    ----------
    source
        An image, or a folder of images.
    shape
        That of the model's input: ``(n, channels, height, width)``.
    mean, std
        Per channel: subtracted, then divided by; none if empty.

    Raises
    ------
    UsageError
        No image input, no readable image, or not as many means as channels.
    """
    import numpy as np
    import torch

    paths = sample_files([source])
    if len(shape) != 4 or shape[1] not in (1, 3):
        raise UsageError(
            f"images do not fit an input of shape {shape}", where=source, hint="give an array file"
        )
    for values in (mean, std):
        if len(values) not in (0, shape[1]):
            raise UsageError(f"{len(values)} values for {shape[1]} channels", where="--mean, --std")
    if 0 in std:
        raise UsageError("a deviation of 0", where="--std")
    images = np.stack([_read_image(path, shape) for path in paths])
    means, deviations = (
        np.array(values or default, np.float32).reshape(-1, 1, 1)
        for values, default in ((mean, (0,)), (std, (1,)))
    )
    return torch.from_numpy((images - means) / deviations)


def _files_of(source: str) -> list[Path]:
    path = Path(source)
    if path.is_dir():
        files = sorted(p for p in path.iterdir() if p.suffix.lower() in IMAGES and p.is_file())
        if not files:
            raise UsageError(f"no image in this folder ({', '.join(IMAGES)})", where=source)
        return files[:MOST_SAMPLES]
    if path.suffix.lower() not in ARRAYS + IMAGES:
        raise UsageError("no source of inputs", where=source, hint=FORMS)
    if not path.is_file():
        raise UsageError("no such file", where=source, hint=FORMS)
    return [path]


def _read_npy(path: Path) -> dict[str, torch.Tensor]:
    import numpy as np
    import torch

    # A map is no larger than the file: a header that claims more is refused before anything is
    # allocated. Pickled objects cannot be mapped at all.
    array = np.load(path, mmap_mode="c", allow_pickle=False)
    return {"0": torch.from_numpy(array)}


def _read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(path)


def _read_pt(path: Path) -> dict[str, torch.Tensor]:
    import torch

    held = torch.load(path, map_location="cpu", weights_only=True)
    if isinstance(held, torch.Tensor):
        held = (held,)
    if isinstance(held, list | tuple):
        held = dict(enumerate(held))
    if not isinstance(held, dict) or not held:
        raise ValueError(f"it holds a {type(held).__name__}, no tensors")
    for name, value in held.items():
        if not isinstance(value, torch.Tensor) or not _is_plain(value):
            raise ValueError(f"its {name!r} is no dense tensor")
    return {str(name): value for name, value in held.items()}


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is dense, and its numbers are what they say."""
    import torch

    unusual = tensor.is_quantized or tensor.is_nested or tensor.is_meta
    return tensor.layout == torch.strided and not unusual


def _read_image(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    import numpy as np
    from PIL import Image, ImageOps

    channels, height, width = shape[1:]
    with _refuse(path), warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(path, formats=_DECODERS) as file:
            image = ImageOps.exif_transpose(file).convert("RGB" if channels == 3 else "L")
        fitted = ImageOps.fit(image, (width, height), Image.Resampling.BILINEAR)
    pixels = np.asarray(fitted, np.float32).reshape(height, width, channels)
    return pixels.transpose(2, 0, 1) / 255


@contextmanager
def _refuse(path: Path):
    """Turn what a decoder raises into a `UsageError` that names the file."""
    try:
        yield
    except Exception as error:  # decoders of other people's formats fail in their own ways
        said = " ".join(str(error).split())[:200]
        raise UsageError(f"cannot be read: {said or type(error).__name__}", where=path) from None


def choose_inputs(
    model: LoadedModel,
    sources: Iterable[str] = (),
    sizes: Mapping[str, int] | None = None,
    mean: tuple[float, ...] = (),
    std: tuple[float, ...] = (),
) -> LoadedModel:
    """The model with other inputs; as it is if nothing is asked for.

    Parameters
    ----------
    model
        A loaded model; its inputs tell shapes and dtypes.
    sources
        One for each tensor that ``forward`` takes, in their order: an array file (``.npy``,
        ``.pt``, ``.safetensors``), an image, a folder of images, or ``random:SEED``. A file of
        several tensors serves several; ``random:SEED`` alone serves all. An array with more rows
        than the input, or one dimension more, holds several samples: the first one is run, the
        others calibrate.
    sizes
        Sizes of dynamic dimensions, by their names in ``get_dynamic_shapes()``, to run at. The
        model is still exported from its own example.
    mean, std
        For images: per channel, subtracted and divided by, of values from 0 to 1.

    Raises
    ------
    UsageError
        A source that cannot be read, or does not fit the model.
    ModelError
        The model fails on the new inputs.
    """
    sources = tuple(sources)
    if (mean or std) and not sources:
        raise UsageError("are for images, and there are none", where="--mean, --std")
    chosen = _resize(model, sizes) if sizes else model
    if sources:
        chosen = _fill(chosen, sources, mean, std)
    if sizes:
        said = ", ".join(f"{name}={size}" for name, size in sorted(sizes.items()))
        chosen = replace(chosen, input_source=f"{chosen.input_source}, at {said}")
    if chosen is not model:
        try_forward(chosen)
    return chosen


def _resize(model: LoadedModel, sizes: Mapping[str, int]) -> LoadedModel:
    """Repeat or cut the example along dynamic dimensions: its values stay what the model takes."""
    import torch
    from torch.utils._pytree import tree_map

    dimensions = dict(_dimensions(model))
    known = {_root(d).__name__ for axes in dimensions.values() for d in axes.values()}
    for name in sizes:
        if name not in known:
            raise unknown_name("dynamic dimension", name, known, model.origin)

    def resize(leaf: Any) -> Any:
        for axis, dimension in dimensions.get(id(leaf), {}).items():
            if _root(dimension).__name__ in sizes:
                index = torch.arange(_size_of(dimension, sizes)) % leaf.shape[axis]
                leaf = leaf.index_select(axis, index)
        return leaf

    args, kwargs = tree_map(resize, (model.example_inputs, model.kwargs))
    return replace(
        model,
        example_inputs=args,
        kwargs=kwargs,
        calibration=(),
        traced_inputs=(model.example_inputs, model.kwargs),
    )


def _dimensions(model: LoadedModel) -> Iterator[tuple[int, dict[int, Any]]]:
    """The identity of each example tensor, and its named dynamic dimensions by their axes."""
    given = inspect.signature(model.module.forward).bind(*model.example_inputs, **model.kwargs)
    shapes = model.dynamic_shapes
    arguments = given.arguments if isinstance(shapes, dict) else tuple(given.arguments.values())
    yield from _pair(arguments, shapes)


def _pair(value: Any, shapes: Any) -> Iterator[tuple[int, dict[int, Any]]]:
    import torch

    if isinstance(value, torch.Tensor):
        axes = shapes if isinstance(shapes, dict) else dict(enumerate(shapes or ()))
        # Dim.AUTO and the like have no name, and numbers are fixed sizes.
        yield id(value), {axis: d for axis, d in axes.items() if hasattr(d, "__name__")}
    elif isinstance(value, dict) and isinstance(shapes, dict):
        for key in value:
            yield from _pair(value[key], shapes.get(key))
    elif isinstance(value, list | tuple) and isinstance(shapes, list | tuple):
        for inner, shape in zip(value, shapes, strict=False):
            yield from _pair(inner, shape)


def _root(dimension: Any) -> Any:
    """The dimension that another one is computed from, as in ``2 * batch``; or itself."""
    return getattr(dimension, "root", dimension)


def _size_of(dimension: Any, sizes: Mapping[str, int]) -> int:
    root = _root(dimension)
    size = sizes[root.__name__]
    if not root.min <= size <= root.max:
        raise UsageError(
            f"{size} is not within {root.min} to {root.max}", where=f"--size {root.__name__}"
        )
    return size if root is dimension else dimension.fn(size)


def _fill(
    model: LoadedModel, sources: tuple[str, ...], mean: tuple[float, ...], std: tuple[float, ...]
) -> LoadedModel:
    import torch
    from torch.utils._pytree import tree_flatten, tree_unflatten

    leaves, structure = tree_flatten((model.example_inputs, model.kwargs))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    examples = [leaves[place] for place in places]
    read = _read(sources, examples, _names(model), mean, std)
    samples = [_split(*pair) for pair in zip(read, examples, strict=True)]
    counts = {len(each) for each in samples} - {1}
    if len(counts) > 1:
        raise UsageError(f"inputs of {' and '.join(map(str, sorted(counts)))} samples")
    count = max(counts, default=1)

    def call(number: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        filled = list(leaves)
        for place, each in zip(places, samples, strict=True):
            filled[place] = each[number % len(each)]
        return tree_unflatten(filled, structure)

    args, kwargs = call(0)
    return replace(
        model,
        example_inputs=args,
        kwargs=kwargs,
        calibration=tuple(call(number) for number in range(1, count)),
        input_source=_describe(sources, count, mean, std),
    )


def _names(model: LoadedModel) -> list[str]:
    """The names of the tensors that ``forward`` takes; of nested ones, that of the argument."""
    import torch
    from torch.utils._pytree import tree_leaves

    parameters = list(inspect.signature(model.module.forward).parameters)
    # The last one may be *tensors.
    parameters += parameters[-1:] * len(model.example_inputs)
    pairs = zip(parameters, model.example_inputs, strict=False)
    return [
        name
        for name, value in [*pairs, *model.kwargs.items()]
        for leaf in tree_leaves(value)
        if isinstance(leaf, torch.Tensor)
    ]


def _read(
    sources: tuple[str, ...],
    examples: list[torch.Tensor],
    names: list[str],
    mean: tuple[float, ...],
    std: tuple[float, ...],
) -> list[tuple[torch.Tensor, str]]:
    """A tensor for each example, and where it is from."""
    import torch

    read: list[tuple[torch.Tensor, str]] = []
    unused = list(sources)
    while unused and len(read) < len(examples):
        source, left = unused.pop(0), examples[len(read) :]
        seed = random_seed(source)
        if seed is not None:
            generator = torch.Generator().manual_seed(seed)
            wanted = left if len(sources) == 1 else left[:1]
            read += [(draw(example, generator), source) for example in wanted]
        elif (arrays := read_arrays(source)) is not None:
            if len(arrays) > 1 and set(arrays) == set(names):
                arrays = {name: arrays[name] for name in names}
            read += [(tensor, source) for tensor in arrays.values()]
        else:
            read.append((read_images(source, tuple(left[0].shape), mean, std), source))
    if len(read) != len(examples) or unused:
        spare = f", {', '.join(unused)} left over" if unused else ""
        raise UsageError(
            f"{len(read)} tensors{spare}; forward() takes {len(examples)}: {', '.join(names)}",
            where="--inputs",
        )
    return read


def _split(read: tuple[torch.Tensor, str], example: torch.Tensor) -> list[torch.Tensor]:
    """The samples in a tensor, each of the example's shape and dtype."""
    tensor, where = read
    shape, wanted = tuple(tensor.shape), tuple(example.shape)
    if shape == wanted:
        samples = [tensor]
    elif shape[1:] == wanted:
        samples = list(tensor[:MOST_SAMPLES])
    elif shape and wanted[:1] and shape[1:] == wanted[1:] and not shape[0] % (wanted[0] or 1):
        samples = list(tensor[: MOST_SAMPLES * wanted[0]].split(wanted[0]))
    else:
        samples = []
    if not samples or (not wanted and len(shape) > 1):
        raise UsageError(
            f"shape {shape}, the model takes {wanted}",
            where=where,
            hint="put several samples along the first dimension; --size changes dynamic ones",
        )
    return [_cast(sample, example.dtype, where) for sample in samples]


def _cast(tensor: torch.Tensor, dtype: torch.dtype, where: str) -> torch.Tensor:
    """The tensor in the model's dtype, if that loses nothing but precision."""
    import torch

    if tensor.is_complex() or tensor.is_floating_point() != dtype.is_floating_point:
        names = [str(each).removeprefix("torch.") for each in (tensor.dtype, dtype)]
        raise UsageError(
            f"{names[0]}, the model takes {names[1]}",
            where=where,
            hint="convert it as your application does, scaling included",
        )
    cast = tensor.detach().to(dtype).contiguous()
    if not dtype.is_floating_point and not torch.equal(cast.to(tensor.dtype), tensor):
        raise UsageError(f"values beyond {str(dtype).removeprefix('torch.')}", where=where)
    # An infinity may be meant, as in masks; one that the cast makes is not.
    overflown = torch.isinf(cast) & torch.isfinite(tensor.double())
    if bool((torch.isnan(cast) | overflown).any()):
        raise UsageError("has values that are no numbers in the model's dtype", where=where)
    return cast


def _describe(
    sources: tuple[str, ...], count: int, mean: tuple[float, ...], std: tuple[float, ...]
) -> str:
    """Where the inputs are from, for the record."""
    told = []
    for source in sources:
        if random_seed(source) is not None:
            told.append(source)
            continue
        files = sample_files([source])
        digest = hashlib.sha256(b"".join(map(_digest, files))).hexdigest()[:16]
        told.append(
            f"{source} ({len(files)} files, SHA-256 {digest} of their SHA-256)"
            if len(files) > 1
            else f"{source} (SHA-256 {_digest(files[0]).hex()[:16]})"
        )
    if mean or std:
        told.append(f"mean {list(mean) or 0}, std {list(std) or 1}")
    return f"{', '.join(told)}; the first of {count} samples" if count > 1 else ", ".join(told)


def _digest(file: Path) -> bytes:
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").digest()
