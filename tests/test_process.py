"""What the workbench changes in its process."""

from pathlib import Path

#: A user's file that says how many page faults a loop of calls has at each depth: few, and at the
#: end of a chunk of Python's stack, one a call.
FILE = """
import resource

CALLS = 2000

def add(a, b, c, d):
    return a + b + c + d

def count_faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(CALLS):
        add(1, 2, 3, 4)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def descend(depth):
    return [count_faults()] + (descend(depth - 1) if depth else [])

open("faults", "w").write(str(max(descend(300))))
"""
FEW = 400


def test_at_no_depth_of_a_command_calls_ask_for_memory(cli, write):
    file = write(FILE)
    exec(compile(FILE, file, "exec"), {})
    outside = int(Path("faults").read_text())
    assert outside > FEW, "the fault of the interpreter; without it, this can go"
    code, _, err = cli("export", f"{file}:Net")
    assert code and "Net" in err
    assert int(Path("faults").read_text()) < FEW
