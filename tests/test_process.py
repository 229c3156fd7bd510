"""What the workbench changes in its process."""

import resource

from workbench.process import with_stack

#: A loop of calls has few page faults; at the end of a chunk, one a call.
CALLS, FEW = 2000, 400


def test_no_depth_makes_calls_ask_for_memory():
    def add(a, b, c, d):
        return a + b + c + d

    def count_faults():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(CALLS):
            add(1, 2, 3, 4)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    def descend(depth):
        return [count_faults()] + (descend(depth - 1) if depth else [])

    assert max(descend(300)) > FEW  # the fault of the interpreter; without it, this can go
    assert max(with_stack(descend)(300)) < FEW
