"""The operators that take the place of a part."""

import torch
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from workbench.graphs import VIEWS, fake_mode_of
from workbench.plugins.remedies.channels_last import widen_numbers
from workbench.plugins.remedies.equivalence import Equivalent, value


@torch.no_grad()
def trace(each: Equivalent) -> GraphModule:
    """The operators that compute the result, on the example values of its sources."""
    fake_mode = fake_mode_of(each.result)
    constants = [fake_mode.from_tensor(each, static_shapes=True) for each in each.constants]
    if fake_mode.shape_env is not None:
        # Sizes that earlier runs of parts left open, which are none of this one's.
        fake_mode.shape_env.pending_fresh_unbacked_symbols.clear()
    with fake_mode:
        build = make_fx(lambda *tensors: each.build(*tensors), pre_dispatch=True)
        traced = build(*map(value, each.sources), *constants)
    widen_numbers(traced.graph)
    return traced  # type: ignore[no-any-return]


def list_operators(each: Equivalent) -> list[Node]:
    """The operators that compute the result, without constants and what only arranges data."""
    traced = trace(each).graph
    traced.eliminate_dead_code()
    calls = [node for node in traced.nodes if node.op == "call_function" and node.all_input_nodes]
    return [node for node in calls if node.target not in VIEWS]
