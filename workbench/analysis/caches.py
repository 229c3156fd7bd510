"""Caches of decoders: buffers that an operator writes at some positions, and others read whole."""

from collections.abc import Iterator
from dataclasses import dataclass

from workbench.analysis.dataflow import POINTWISE, Dataflow, FlowStep, TensorId

#: Copies a tensor into a buffer; and an operator that writes positions without a copy of the rest.
_COPY, _IN_PLACE = "copy_", "index_put_"


@dataclass(frozen=True)
class Cache:
    """A cache in a buffer of the program.

    Attributes
    ----------
    write
        The kernel that writes new values at some positions, of a copy of the buffer.
    copy
        What copies the result back; None where the kernel writes into the buffer itself.
    size_bytes, written_bytes
        Of the buffer, and of the new values of one call.
    indices
        Kernels that only compute where the values go.
    readers
        What reads the buffer with the new values.
    """

    write: FlowStep
    copy: FlowStep | None
    size_bytes: int
    written_bytes: int
    indices: tuple[FlowStep, ...]
    readers: tuple[FlowStep, ...]

    @property
    def moved_bytes(self) -> int:
        """Bytes that are read and written for the new values of one call."""
        return 2 * self.written_bytes + (4 * self.size_bytes if self.copy else 0)

    @property
    def writers(self) -> list[FlowStep]:
        """What writes, in order: places, values, and the copy."""
        return [*self.indices, self.write, *([self.copy] if self.copy else [])]


def list_caches(flow: Dataflow) -> Iterator[Cache]:
    """The caches of a program.

    A state whose elements are all new after a call, such as a recurrent layer's, is no cache.
    """
    for step in flow.steps:
        if step.type == _COPY and step.is_kernel and step.writes:
            buffer, makers = step.writes[0], flow.before(step)
            for write in makers:
                if write is not step and (value := _find_value(flow, write, buffer)):
                    yield _describe(flow, write, step, buffer, value)
        elif step.type == _IN_PLACE and step.is_kernel and step.writes:
            buffer = step.writes[0]
            value = _find_smaller(flow, step, buffer)
            if value:
                yield _describe(flow, step, None, buffer, value)


def _find_value(flow: Dataflow, write: FlowStep, buffer: TensorId) -> TensorId | None:
    """What a kernel puts into a copy of a buffer; None if it does anything else."""
    if not write.is_kernel or write.type in POINTWISE or buffer not in write.reads:
        return None
    same = flow.tensors[write.writes[0]].shape == flow.tensors[buffer].shape
    return _find_smaller(flow, write, buffer) if same else None


def _find_smaller(flow: Dataflow, write: FlowStep, buffer: TensorId) -> TensorId | None:
    """The largest operand of the buffer's dtype that has fewer elements."""
    whole = flow.tensors[buffer]
    smaller = [
        each
        for each in write.reads
        if each != buffer
        and flow.tensors[each].dtype == whole.dtype
        and flow.tensors[each].size_bytes < whole.size_bytes
    ]
    return max(smaller, key=lambda each: flow.tensors[each].size_bytes, default=None)


def _describe(
    flow: Dataflow, write: FlowStep, copy: FlowStep | None, buffer: TensorId, value: TensorId
) -> Cache:
    places = [operand for operand in write.reads if operand not in (buffer, value)]
    makers = {flow.makers[place].id: flow.makers[place] for place in places if place in flow.makers}
    indices = [
        maker
        for maker in makers.values()
        if maker.is_kernel and all(user.type == write.type for user in flow.after(maker))
    ]
    readers = [step for step in flow.users[write.writes[0]] if step not in (write, copy)]
    sizes = flow.tensors[buffer].size_bytes, flow.tensors[value].size_bytes
    return Cache(write, copy, *sizes, tuple(indices), tuple(readers))
