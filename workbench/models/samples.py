"""Tensors from files that nobody vouches for: arrays, images, seeded noise."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.errors import UsageError

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
