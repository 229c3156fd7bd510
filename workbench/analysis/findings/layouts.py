"""Rules on transposes and conversions of layouts."""

import math
from collections.abc import Callable, Collection, Iterator

from workbench.analysis.dataflow import (
    POINTWISE,
    Dataflow,
    FlowStep,
    NodeId,
    TensorId,
)
from workbench.analysis.findings import commands
from workbench.analysis.findings.finding import Finding, Gain
from workbench.analysis.findings.gains import keys_of, time_spent
from workbench.analysis.run import Measurement
from workbench.records.layer_sidecar import Value
from workbench.wording import plural

#: What to do, and the same in code.
Advice = tuple[str, str]

#: Operators of a delegate that compute channels last: the exporter converts the layout around them.
_CHANNELS_LAST = frozenset(
    """
    Conv2d DepthwiseConv2d ConvTranspose2d AvgPooling2d MaxPooling2d ArgMaxPooling2d
    GlobalAvgPooling2d StaticResizeBilinear2D
    """.split()  # noqa: SIM905
)
_ONE_LAYOUT = (
    "keep one layout through the block: tokens that are reshaped once",
    "x = x.flatten(2).transpose(1, 2)  # once, before the blocks, not in each",
)
_SQUEEZE = (
    "compute the factors of the channels as images of one pixel, with 1x1 convolutions",
    "x * torch.sigmoid(fc2(F.relu(fc1(x.mean((2, 3), keepdim=True)))))  # fc1, fc2: nn.Conv2d",
)
#: Converts the dtype, such as to int8, and no layout.
_CAST = "Convert"
_TRANSPOSES = ("StaticTranspose", "permute_copy", "transpose_copy")
#: What computes on tokens, the positions of an image in a row.
_ON_TOKENS = frozenset(
    ["StaticReshape", "view_copy", "FullyConnected", "native_layer_norm", "BatchMatrixMultiply"]
)
_TO_CHANNELS_LAST = (0, 2, 3, 1)
_PROGRAM_EDGE = "the program's inputs and outputs"


def find_needless_transposes(m: Measurement, unclaimed: Collection[str]) -> Iterator[Finding]:
    """Pairs of transposes that cancel out, with nothing in between that depends on the layout."""
    pairs: dict[NodeId, FlowStep] = {}
    between: set[str] = set()
    for step in m.flow.steps:
        if inverses := _find_inverses(m.flow, step):
            ends, types = inverses
            pairs.update({each.id: each for each in (step, *ends)})
            between |= types
    keys = keys_of(m, pairs.values(), unclaimed)
    if not keys:
        return
    passed = f"only {', '.join(sorted(between))}" if between else "nothing"
    title = f"{len(keys)} transposes cancel out, with {passed} in between"
    gain, advice = time_spent(m, keys), _undo([*pairs.values()], between)
    yield Finding(title, gain if any(advice) else Gain.at_most(gain.ms), keys, *advice)


def find_layout_changes(m: Measurement, unclaimed: Collection[str]) -> Iterator[Finding]:
    """Transposes that the exporter inserted, by their cause."""
    causes: dict[str, list[str]] = {}
    for step in m.flow.steps:
        if step.made_up and step.type in _TRANSPOSES and (cause := _cause(m.flow, step)):
            causes.setdefault(cause, []).extend(keys_of(m, [step], unclaimed))
    # Images and one value for each channel, as in squeeze-excite. The layout of such values is
    # ambiguous: in channels-last programs, the exporter copies them outside the delegate
    # (mobilenet_v3_small: 11 delegates instead of 1).
    steps = m.flow.steps
    scaling = {s.type for s in steps if s.type in POINTWISE and len(_images(m.flow, s)) > 1}
    pictures = {_cause(m.flow, s) for s in steps if s.made_up and _is_of_picture(m.flow, s)}
    for cause, keys in causes.items():
        if not keys:
            continue
        title, gain = f"{plural(len(keys), 'layout conversion')} for {cause}", time_spent(m, keys)
        if cause == _PROGRAM_EDGE:
            if not scaling and not _leaves_delegates(m.flow):
                yield _tell_inputs(m, title, gain, keys)
            continue
        advice: Advice = ("", "")
        if cause in scaling or (scaling and cause == "mean"):
            advice = _SQUEEZE
        elif cause in _ON_TOKENS & pictures:
            advice = _ONE_LAYOUT
        yield Finding(title, Gain.at_most(gain.ms), keys, *advice)


def _tell_inputs(m: Measurement, title: str, gain: Gain, keys: list[str]) -> Finding:
    """Inputs that could be channels last, as the program computes."""
    action = "pass channels-last inputs, the layout that XNNPACK computes in"
    if any(map(_is_pixel, m.flow.tensors.values())):
        action += "; tensors of one pixel, as after pooling, are then copied between two "
        action += "delegates, which costs a part of that"
        gain = Gain.at_most(gain.ms)
    code = "example_inputs = (x.to(memory_format=torch.channels_last),)"
    command = commands.write_command(m, channels_last=True)
    return Finding(title, gain, keys, action, code, command, remedy="channels_last")


def _leaves_delegates(flow: Dataflow) -> bool:
    """Whether kernels outside of delegates read images.

    In channels-last programs, the exporter copies these images, or the kernels refuse them.
    """
    return any(step.xnode is None and _images(flow, step) for step in flow.steps)


def _images(flow: Dataflow, step: FlowStep) -> set[int]:
    """The numbers of elements of the images that a step reads."""
    tensors = (flow.tensors[tensor] for tensor in step.reads)
    return {math.prod(t.shape) for t in tensors if not t.constant and len(t.shape) == 4}


def _is_of_picture(flow: Dataflow, step: FlowStep) -> bool:
    """Whether a transpose is of an image of several rows and columns, not of a sequence."""
    if step.type not in _TRANSPOSES or not step.permutation or len(step.permutation) != 4:
        return False
    shape = flow.tensors[step.reads[0]].shape
    first = 2 if step.permutation == _TO_CHANNELS_LAST else 1
    return min(shape[first : first + 2]) > 1


def _is_pixel(tensor: Value) -> bool:
    """Whether a tensor is an image of one pixel with channels, in either layout."""
    shape = () if tensor.constant else tensor.shape
    return len(shape) == 4 and 1 < math.prod(shape[1:]) == max(shape[1:])


_REMOVE_BOTH = (
    "remove both: the operators in between treat every element alike",
    "torch.relu(x)  # for x.permute(0, 2, 3, 1).relu().permute(0, 3, 1, 2)",
)
_NO_PERMUTATION = (
    "do without the permutation, which undoes what the exporter converts: a 1x1 convolution, for "
    "example, computes a linear layer on channels",
    "nn.Conv2d(channels, wider, 1)  # for permute + nn.Linear + permute",
)
_ONE_DELEGATE = (
    "keep both ends in one delegate: layouts are converted at delegate boundaries; "
    "`workbench export` lists what was not delegated, where and why",
    "",
)
_FOUR_DIMENSIONS = (
    "use operands of four dimensions: around others, such as scalars, the exporter leaves channels "
    "last",
    'self.register_buffer("half", torch.full((1, 1, 1, 1), 0.5))  # x * self.half',
)


def _undo(ends: list[FlowStep], between: Collection[str]) -> Advice:
    """How to avoid transposes that cancel out; around concatenations in int8, nobody knows."""
    made_up = [step.made_up for step in ends]
    if not all(made_up):
        return _NO_PERMUTATION if any(made_up) else _REMOVE_BOTH
    if len({step.id[0] for step in ends}) > 1:
        return _ONE_DELEGATE
    return _FOUR_DIMENSIONS if between else ("", "")


def _find_inverses(flow: Dataflow, start: FlowStep) -> tuple[list[FlowStep], set[str]] | None:
    """The transposes that undo ``start``, and the types in between; None if one is needed."""
    if not start.permutation:
        return None
    inverse = tuple(sorted(range(len(start.permutation)), key=start.permutation.__getitem__))
    reached = [start]
    ends: dict[NodeId, FlowStep] = {}
    passed: dict[NodeId, FlowStep] = {}
    while reached:
        step = reached.pop()
        if flow.returns(step):
            return None
        for user in flow.after(step):
            if user.permutation == inverse:
                ends[user.id] = user
            elif user.id not in passed:
                if user.type not in POINTWISE:
                    return None
                passed[user.id] = user
                reached.append(user)
    inside = {start.id, *passed}
    for step in passed.values():
        if not all(_is_reordered(flow, operand, inside, start) for operand in step.reads):
            return None
    return list(ends.values()), {step.type for step in passed.values()}


def _is_reordered(
    flow: Dataflow, operand: TensorId, inside: Collection[NodeId], start: FlowStep
) -> bool:
    """Whether an operand has the order of a transpose, or can have it without work at run time.

    Constants and single values can be reordered in advance.
    """
    tensor, maker = flow.tensors[operand], flow.makers.get(operand)
    if tensor.constant or math.prod(tensor.shape) == 1:
        return True
    if maker is None:
        return False
    return maker.id in inside or maker.permutation == start.permutation


def _cause(flow: Dataflow, step: FlowStep) -> str:
    """The cause of a layout conversion: its neighbour that does not compute channels last."""
    before, after = (_skip_casts(step, way) for way in (flow.before, flow.after))
    casts = [each for each in flow.after(step) if each.type == _CAST]
    returned = any(flow.returns(each) for each in (step, *casts))
    if step.made_up and (returned or not before):
        return _PROGRAM_EDGE
    kinds = [
        s.type for s in (*before, *after) if s.type not in _CHANNELS_LAST and not s.permutation
    ]
    return min(kinds, key=lambda kind: (kind in POINTWISE, kind), default="convolutions")


def _skip_casts(step: FlowStep, way: Callable[[FlowStep], list[FlowStep]]) -> list[FlowStep]:
    """The steps before or after one, and in place of conversions of the dtype those beyond."""
    steps = way(step)
    ids = {each.id for each in steps}
    for each in steps:  # which grows
        if each.type == _CAST:
            beyond = [other for other in way(each) if other.id not in ids]
            ids |= {other.id for other in beyond}
            steps += beyond
    return [each for each in steps if each.type != _CAST]
