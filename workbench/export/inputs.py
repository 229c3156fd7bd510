"""What a program is fed with: tensors only, in its dtype, as raw bytes in its own layout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn


def cast_floats(values: Any, dtype: torch.dtype) -> Any:
    """Nested values with every floating-point tensor in ``dtype``, everything else as it is."""
    import torch
    from torch.utils._pytree import tree_map_only

    def cast(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    return tree_map_only(torch.Tensor, cast, values)


def bind_constants(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """A module that takes tensors only, and its arguments: the same one if it already does.

    ``torch.export`` turns numbers, flags and None into constants but leaves them in the program's
    signature, where a runner would have to feed them for nothing.
    """
    import torch
    from torch.utils._pytree import tree_flatten, tree_unflatten

    leaves, structure = tree_flatten((args, kwargs))
    if all(isinstance(leaf, torch.Tensor) for leaf in leaves):
        return module, args, kwargs

    class Bound(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = module

        def forward(self, *tensors: torch.Tensor) -> Any:
            given = iter(tensors)
            filled = [next(given) if isinstance(x, torch.Tensor) else x for x in leaves]
            args, kwargs = tree_unflatten(filled, structure)
            return self.model(*args, **kwargs)

    return Bound(), tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor)), {}


def raw_bytes(tensor: torch.Tensor, dim_order: tuple[int, ...]) -> bytes:
    """The elements of a tensor, its dimensions laid out from ``dim_order[0]``, the slowest, on."""
    import torch

    laid_out = tensor.detach().cpu().permute(dim_order).contiguous()
    return laid_out.reshape(-1).view(torch.uint8).numpy().tobytes()
