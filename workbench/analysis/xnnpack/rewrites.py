"""XNNPACK's subgraph optimiser, as far as it changes which operators run.

In phases over the whole graph: fusion of padding and copies, 8-bit functions into lookup tables,
simplification until nothing changes, conversions into the operators that read them. Last, half
precision becomes fp32 for operators that the CPU has no kernels for.
"""

import math

from workbench.analysis.xnnpack.graph import GraphValue, Node, XGraph, replace

#: Every kind of node, in a set of kinds without kernels.
EVERYTHING = "*"

#: Kinds that move data of any type.
_MOVING = ("concat", "copy", "pad", "reshape", "slice", "transpose")


def kind_of(node: Node) -> str:
    """The kind of half-precision kernel that a node needs: ``resize``, ``unary:Exp``, ..."""
    return f"{node.kind}:{node.operator}" if node.operator else node.kind


def compute_in_single(graph: XGraph, dtype: str, lacking: frozenset[str]) -> None:
    """Let nodes without kernels of a 16-bit type compute in fp32, with conversions around them.

    ``dtype`` is ``bf16``, which only matrix products compute in, or ``fp16``: then ``lacking`` has
    the kinds of nodes (`kind_of`) without kernels. Changes the rewritten graph in place.
    """
    graph.count()
    widened: dict[int, int] = {}
    changed = False
    for node in graph.live_nodes():
        sides = [[graph.values[value] for value in side] for side in (node.inputs, node.outputs)]
        if not any(tensor.dtype == dtype or tensor.was_half for tensor in sides[0] + sides[1]):
            continue
        types = {sides[0][0].dtype, sides[1][0].dtype}
        if node.is_unary("Convert") and len(types) == 1 and types <= {dtype, "fp32"}:
            # It no longer converts.
            node.live = not graph.short_circuit(node.inputs[0], node.outputs[0])
            changed |= not node.live
        else:
            changed |= _widen(graph, node, dtype, lacking, widened)
    if changed:
        graph.clean_up()


def _widen(
    graph: XGraph, node: Node, dtype: str, lacking: frozenset[str], widened: dict[int, int]
) -> bool:
    """Let a node that lacks a type compute in single precision; returns whether it changed."""
    inputs = [graph.values[value] for value in node.inputs]
    outputs = [graph.values[value] for value in node.outputs]
    if node.is_unary("Convert") and dtype in (inputs[0].dtype, outputs[0].dtype):
        return False
    lacks = dtype == "bf16" or EVERYTHING in lacking or kind_of(node) in lacking
    follows = any(tensor.dtype == "fp32" and tensor.was_half for tensor in inputs)
    if not follows and (node.kind in _MOVING or not lacks):
        return False
    changed = any(tensor.dtype == dtype for tensor in (*inputs, *outputs))
    _widen_outputs(graph, node, dtype)
    _widen_inputs(graph, node, dtype, widened)
    return changed


def _widen_outputs(graph: XGraph, node: Node, dtype: str) -> None:
    """Make the results wide; what leaves the graph is converted back."""
    for place, tensor in enumerate([graph.values[value] for value in node.outputs]):
        if tensor.dtype != dtype:
            continue
        if not tensor.external:
            tensor.dtype, tensor.was_half = "fp32", True
            continue
        wide = graph.new_tensor("fp32", tensor.shape)
        wide.was_half = True
        node.outputs[place] = wide.id
        for reader in graph.nodes:
            reader.inputs = replace(reader.inputs, tensor.id, wide.id)
        _append_conversion(graph, wide.id, tensor.id, node)


def _widen_inputs(graph: XGraph, node: Node, dtype: str, widened: dict[int, int]) -> None:
    """Read wide tensors, each of which is converted once."""
    for place, tensor in enumerate([graph.values[value] for value in node.inputs]):
        if tensor.dtype != dtype:
            continue
        if tensor.id not in widened:
            wide = graph.new_tensor("fp32", tensor.shape)
            wide.constant = tensor.constant
            widened[tensor.id] = wide.id
            if not tensor.constant:
                _append_conversion(graph, tensor.id, wide.id, node)
        node.inputs[place] = widened[tensor.id]


def _append_conversion(graph: XGraph, source: int, result: int, node: Node) -> None:
    serves = list(node.sources)
    graph.nodes.append(Node("unary", "Convert", [source], [result], [], serves=serves))


#: Real graphs reach a fixed point long before; malformed ones may never.
_MOST_PASSES = 100
_LONGEST_TABLE = 10
_CLAMPING = ("avgpool", "conv", "deconv", "dwconv", "fc", "maxpool")
_EIGHT_BITS = ("qint8", "quint8", "qcint8", "qdint8", "qduint8", "qpint8")


def apply_rewrites(graph: XGraph) -> None:
    """Rewrite a graph as XNNPACK does before it creates operators, except for half precision."""
    graph.clean_up()
    fuse_pads_and_copies(graph)
    fuse_tables(graph)
    simplify(graph)
    quantize_right_operands(graph)
    inline_conversions(graph)


def fuse_pads_and_copies(graph: XGraph) -> None:
    """Fuse pads into convolutions, copies into producer or reader, if one node reads between."""
    place = {id(node): number for number, node in enumerate(graph.nodes)}

    def untouched(value: int, producer: Node, reader: Node) -> bool:
        between = graph.nodes[place[id(producer)] + 1 : place[id(reader)]]
        return not any(n.live and value in (*n.inputs, *n.outputs) for n in between)

    for tensor in sorted(graph.values.values(), key=lambda tensor: tensor.id):
        producer, reader = tensor.producer, tensor.reader
        if tensor.readers != 1 or producer is None or reader is None:
            continue
        if not producer.live or not reader.live:
            continue
        if producer.kind == "pad" and reader.kind in ("conv", "dwconv") and _pads(producer, tensor):
            reader.inputs[0] = producer.inputs[0]
            _drop(graph, producer, tensor, reader)
        if reader.kind == "copy" and _is_between(tensor):
            result = reader.outputs[0]
            if untouched(result, producer, reader):
                graph.values[result].producer = producer
                producer.outputs = replace(producer.outputs, tensor.id, result)
                producer.sources += reader.sources
                reader.live = tensor.alive = False
        if producer.live and producer.kind == "copy" and _is_between(tensor):
            source = producer.inputs[0]
            if untouched(source, producer, reader):
                reader.inputs = replace(reader.inputs, tensor.id, source)
                _drop(graph, producer, tensor, reader)


def _pads(node: Node, tensor: GraphValue) -> bool:
    """Whether a pad adds zeros around an image, and nothing else."""
    before, after = (node.parameters.get(f"{side}_paddings") or [] for side in ("pre", "post"))
    spatial = len(tensor.shape) == len(before) == len(after) == 4
    spatial = spatial and not any((before[0], after[0], before[3], after[3]))
    zero = node.parameters.get("padding_value") == 0
    return spatial and zero and tensor.dtype in ("fp32", "qint8", "quint8")


def _is_between(tensor: GraphValue) -> bool:
    return tensor.alive and not tensor.external


def _drop(graph: XGraph, producer: Node, tensor: GraphValue, reader: Node) -> None:
    """Remove a node whose work its only reader takes over."""
    source = graph.values[producer.inputs[0]]
    if source.reader is producer:
        source.reader = reader
    reader.sources = producer.sources + reader.sources
    producer.live = tensor.alive = False


def fuse_tables(graph: XGraph) -> None:
    """Turn chains of functions from 8 bits to 8 bits into one lookup."""
    for first in graph.live_nodes():
        source = _table_input(graph, first, ()) if first.live else None
        if source is None or graph.values[source].dtype not in _EIGHT_BITS:
            continue
        chain = _table_chain(graph, first)
        if len(chain) > 1:
            last = chain[-1]
            last.sources = [number for node in chain for number in node.sources]
            last.kind, last.operator, last.inputs = "lut", "", [source]
            for node in chain[:-1]:
                graph.values[node.outputs[0]].alive = False
                node.live = False


def _table_chain(graph: XGraph, first: Node) -> list[Node]:
    chain: list[Node] = []
    values: set[int] = set()
    node = first
    while True:
        chain.append(node)
        values.update(node.inputs, node.outputs)
        result = graph.values[node.outputs[0]]
        reader = result.reader
        if result.readers != 1 or reader is None or not reader.live:
            break
        if len(chain) == _LONGEST_TABLE or _table_input(graph, reader, values) is None:
            break
        node = reader
    while len(chain) > 1 and graph.values[chain[-1].outputs[0]].dtype not in _EIGHT_BITS:
        chain.pop()
    return chain


def _table_input(graph: XGraph, node: Node, constants: set[int] | tuple[()]) -> int | None:
    """The one value that a function depends on, besides constants and ``known`` values."""
    if node.kind == "unary":
        return node.inputs[0] if len(node.inputs) == 1 else None
    if node.kind != "binary":
        return None
    first, second = (graph.values[value] for value in node.inputs[:2])
    if _is_scalar(first) and not second.constant:
        return second.id
    if _is_scalar(second) and not first.constant:
        return first.id
    return first.id if {first.id, second.id} <= set(constants) else None


def _is_scalar(tensor: GraphValue) -> bool:
    return tensor.constant and math.prod(tensor.shape) == 1 and tensor.producer is None


def simplify(graph: XGraph) -> None:
    """Apply the rules below until no node changes."""
    for _ in range(_MOST_PASSES):
        changes = [_simplify_node(graph, node) for node in list(graph.nodes) if node.live]
        if not any(changes):
            break
        graph.clean_up()


def _simplify_node(graph: XGraph, node: Node) -> bool:
    if not node.live:
        return False
    _infer_shape(graph, node)
    if node.kind == "binary":
        if node.operator == "Multiply" and node.inputs[0] == node.inputs[1]:
            node.kind, node.operator, node.inputs = "unary", "Square", node.inputs[:1]
            return True
        return _clamp_extremum(graph, node)
    if node.is_unary("Clamp"):
        return _merge_clamp(graph, node)
    if node.kind == "mean":
        return _merge_square(graph, node)
    if node.kind == "reshape":
        return _merge_reshapes(graph, node)
    if node.kind in ("fc", "bmm"):
        return _merge_transpose(graph, node)
    return False


def _infer_shape(graph: XGraph, node: Node) -> None:
    inputs = [graph.values[value] for value in node.inputs]
    result = graph.values[node.outputs[0]]
    if node.kind not in ("unary", "lut", "binary") or not all(t.shape_known for t in inputs):
        return
    rank = max(len(tensor.shape) for tensor in inputs)
    padded = [(1,) * (rank - len(tensor.shape)) + tuple(tensor.shape) for tensor in inputs]
    result.shape, result.shape_known = tuple(map(max, *padded, (1,) * rank)), True


def _clamp_extremum(graph: XGraph, node: Node) -> bool:
    """Turn the maximum or minimum of a tensor and a constant number into a clamp."""
    if node.operator not in ("Maximum", "Minimum"):
        return False
    first, second = (graph.values[value] for value in node.inputs[:2])
    scalars = [t.constant and math.prod(t.shape) == 1 for t in (first, second)]
    if not any(scalars):
        return False
    tensor, number = (second, first) if scalars == [True, False] else (first, second)
    if len(number.shape) > len(tensor.shape):
        return False
    node.kind, node.operator, node.inputs = "unary", "Clamp", [tensor.id]
    node.parameters["bounded"] = True
    return True


def _merge_clamp(graph: XGraph, node: Node) -> bool:
    source = graph.values[node.inputs[0]]
    producer = graph.producer_of(source.id)
    clamps = producer and (producer.kind in _CLAMPING or producer.is_unary("Clamp"))
    if producer and clamps and source.readers <= 1:
        producer.outputs[0] = node.outputs[0]
        producer.sources += [n for n in node.sources if n not in producer.sources]
        node.live = False
        return True
    if node.parameters.get("bounded"):
        return False
    if graph.short_circuit(node.inputs[0], node.outputs[0]):
        node.live = False
    else:
        node.kind, node.operator = "copy", ""
    return True


def _merge_square(graph: XGraph, node: Node) -> bool:
    producer = graph.producer_of(node.inputs[0])
    floating = graph.values[node.inputs[0]].dtype in ("fp16", "fp32")
    if producer is None or not floating or not producer.is_unary("Square"):
        return False
    node.kind, node.inputs = "meansq", producer.inputs[:1]
    node.sources = producer.sources + node.sources
    return True


def _merge_reshapes(graph: XGraph, node: Node) -> bool:
    shape = tuple(node.parameters.get("new_shape") or ())
    if not shape or not all(shape):
        return False
    result, source = graph.values[node.outputs[0]], graph.values[node.inputs[0]]
    result.shape, result.shape_known = shape, True
    changed = False
    producer = graph.producer_of(source.id)
    if producer and producer.kind == "reshape" and source.readers == 1:
        node.inputs[0] = producer.inputs[0]
        _drop(graph, producer, source, node)
        source, changed = graph.values[node.inputs[0]], True
    elided = source.constant or tuple(source.shape) == shape
    if elided and source.shape_known and source.readers <= 1 and not result.is_output:
        source.shape = shape
        changed |= graph.short_circuit(source.id, result.id)
        node.live = False
    return changed


def _merge_transpose(graph: XGraph, node: Node) -> bool:
    """Let a matrix product read its second operand transposed, without transposing it."""
    operand = graph.values[node.inputs[1]]
    transpose = graph.producer_of(operand.id)
    if transpose is None or transpose.kind != "transpose" or operand.readers != 1:
        return False
    flags = node.parameters.get("flags") or 0
    columns_first = (node.kind == "fc") == bool(flags & 1)
    order = list(transpose.parameters.get("perm") or ())
    rank = len(order)
    swaps_last = rank >= 2 and order == [*range(rank - 2), rank - 1, rank - 2]
    if not columns_first and not swaps_last:
        return False
    if swaps_last:
        node.inputs[1] = transpose.inputs[0]
        node.sources = transpose.sources + node.sources
    else:
        transpose.parameters["perm"] = order[:-2] + order[-2:][::-1]
    node.parameters["flags"] = flags ^ 1
    return True


def quantize_right_operands(graph: XGraph) -> None:
    """Let a matrix product read dequantised weights as per-channel integers."""
    graph.count()
    changed = False
    for node in graph.live_nodes():
        if node.kind != "bmm":
            continue
        left, right, result = (graph.values[v] for v in (*node.inputs[:2], node.outputs[0]))
        convert = graph.producer_of(right.id)
        if {left.dtype, right.dtype, result.dtype} != {"fp32"} or convert is None:
            continue
        source = graph.values[convert.inputs[0]]
        symmetric = source.dtype == "qint8" and source.zero_point == 0
        if not (convert.is_unary("Convert") and symmetric and right.readers == 1):
            continue
        if len(right.shape) >= 2:
            packed = graph.new_tensor("qcint8", source.shape)
            sources = list(convert.sources)
            graph.nodes.append(Node("convert", "Convert", [source.id], [packed.id], sources))
            node.inputs[1] = packed.id
            changed = True
    if changed:
        graph.clean_up()


def inline_conversions(graph: XGraph) -> None:
    """Let matrix products quantise their own rows."""
    changed = False
    for node in graph.live_nodes():
        if node.kind not in ("fc", "bmm") or graph.values[node.inputs[0]].dtype != "qdint8":
            continue
        quantized = graph.values[node.inputs[0]]
        convert = quantized.producer
        if convert is None or convert.kind != "convert":
            continue
        node.inputs[0] = convert.inputs[0]
        node.sources = convert.sources + node.sources
        quantized.readers -= 1
        convert.live = quantized.readers > 0
        changed = True
    if changed:
        graph.clean_up()
