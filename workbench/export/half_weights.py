"""Convolution weights in half precision, which the XNNPACK serialiser widens to single."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

_CONVOLUTION = "aten.convolution.default"


@contextlib.contextmanager
def keep_half_weights() -> Iterator[None]:
    """Let programs lowered in here keep convolution weights and biases in fp16.

    The serialiser of ``executorch.backends.xnnpack`` stores them as fp32 whatever they are, and
    XNNPACK's fp16 fully connected path, which 1x1 convolutions take, wants fp16 weights. Transposed
    convolutions stay as they are: XNNPACK runs these with fp32 weights only.
    """
    from executorch.backends.xnnpack.operators.node_visitor import _node_visitor_dict as visitors

    visitor = visitors[_CONVOLUTION]

    class HalfVisitor(visitor):
        def define_node(self, node: Any, *args: Any, **kwargs: Any) -> None:
            self.is_transposed = node.args[6]
            super().define_node(node, *args, **kwargs)

        def define_tensor(self, *args: Any, force_fp32: bool = False, **kwargs: Any) -> None:
            super().define_tensor(*args, force_fp32=force_fp32 and self.is_transposed, **kwargs)

    visitors[_CONVOLUTION] = HalfVisitor
    try:
        yield
    finally:
        visitors[_CONVOLUTION] = visitor
