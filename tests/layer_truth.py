"""Which layer each event of a trace is of, told by XNNPACK and by the ETRecord.

Independent of the code under test: nothing is predicted, aligned or read from names. XNNPACK itself
says which values each operator of a delegate reads and makes (``xnn_plan.cpp``); going back from
these through the delegate's graph as it was exported gives the exported operators behind an event.
Their debug handles, and those of kernels, lead to modules through the graphs in the ETRecord.
"""

import json
import zipfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from workbench.export.pte import NO_HANDLE, read_pte

PROBE = Path(__file__).with_name("xnn_plan.cpp")


def probe_command(compiler, output):
    """What compiles the library to be preloaded."""
    return [
        *compiler,
        "-std=c++17",
        "-shared",
        "-fPIC",
        "-O1",
        str(PROBE),
        "-o",
        str(output),
        "-ldl",
    ]


@dataclass(frozen=True)
class Step:
    """One operator of a delegate as XNNPACK runs it: how many events, which values."""

    events: int
    reads: tuple[int, ...]
    makes: tuple[int, ...]


def read_plans(text):
    """The number of outer values and the steps of each delegate, in the order of loading."""
    plans = []
    for line in text.splitlines():
        head, _, tail = line.partition(":")
        steps = [part.split("/") for part in tail.split()]
        ids = [
            Step(int(count), *(tuple(map(int, side.split(","))) if side else () for side in sides))
            for count, *sides in steps
        ]
        plans.append((int(head.split()[0]), ids))
    return plans


def external_ids(pte, instruction_index):
    """The id that XNNPACK gives to each outer value of a delegate, by the value's own id."""
    plan = read_pte(pte)["execution_plan"][0]
    kind, call = plan["chains"][0]["instructions"][instruction_index]["instr_args"]
    assert kind == "DelegateCall"
    found = {}
    for item in plan["delegates"][call["delegate_index"]]["graph"]["xvalues"]:
        tensor = item["xvalue_union"][1]
        tensor = tensor.get("tensor_value", tensor)
        if tensor["flags"] & 3:
            found[tensor["id_out"]] = tensor["external_id"]
    return call["delegate_index"], found


def exported_values(values, exported, follow):
    """The exported values among some values, and among those that others lead to."""
    front, found = list(values), set()
    while front:
        value = front.pop()
        if value in exported:
            found.add(exported[value])
        else:
            front += follow(value)
    return found


def nodes_of_events(plan, instruction, outer):
    """The exported operators behind each event of a delegate, as sets of their numbers."""
    count, steps = plan
    inner = [value.id for value in instruction.xvalues if value.id not in outer]
    exported = {number: value for value, number in outer.items()}
    exported |= {count + place: value for place, value in enumerate(inner)}
    producer = {
        out: number for number, node in enumerate(instruction.xnodes) for out in node.outputs
    }
    readers = defaultdict(list)
    for place, step in enumerate(steps):
        for value in step.reads:
            readers[value].append(place)

    def makes_of(value):
        """What steps make of a value that was not exported."""
        return [made for place in readers[value] for made in steps[place].makes]

    def origins_of(value):
        """What a value that was not exported is a copy of."""
        return [read for step in steps if value in step.makes for read in step.reads]

    events = []
    for step in steps:
        given = exported_values(step.reads, exported, origins_of)
        front, behind = list(exported_values(step.makes, exported, makes_of)), set()
        while front:
            number = producer.get(front.pop())
            if number is not None and number not in behind:
                behind.add(number)
                front += [v for v in instruction.xnodes[number].inputs if v not in given]
        events += [behind] * step.events
    return events


class Record:
    """The modules of an ETRecord's nodes: ``of_handle``, and ``of_instruction`` for kernels."""

    def __init__(self, path):
        self.of_handle = defaultdict(set)
        with zipfile.ZipFile(path) as record:
            for name in ("edge_dialect_exported_program/forward", "edge_after_transform/forward"):
                if name in record.namelist():
                    self._add(json.loads(record.read(name))["graph_module"]["graph"]["nodes"])
            handles = json.loads(record.read("debug_handle_map"))["forward"]
        self.of_instruction = {}
        for number, found in handles.items():
            found = found if isinstance(found, list) else [found]
            self.of_instruction[int(number)] = set().union(*(self.of_handle[h] for h in found))

    def _add(self, nodes):
        for node in nodes:
            stack = node["metadata"].get("nn_module_stack", "")
            modules = [entry.split(",")[1] for entry in stack.split(";") if entry]
            if modules and "debug_handle" in node["metadata"]:
                path = modules[-1].removeprefix("L['self']").removeprefix("_export_root")
                self.of_handle[int(node["metadata"]["debug_handle"])].add(path.removeprefix("."))


def modules_of_nodes(instruction, record):
    """The modules that each exported operator of a delegate may be of.

    One that the exporter made up, without a debug handle or between layers to change a type, is of
    one of those before and after it.
    """
    nodes = instruction.xnodes
    known = [
        set() if node.handle == NO_HANDLE else set(record.of_handle.get(node.handle, ()))
        for node in nodes
    ]
    known = [
        set() if node.type == "Convert" and modules == {""} else modules
        for node, modules in zip(nodes, known, strict=True)
    ]
    producer = {out: number for number, node in enumerate(nodes) for out in node.outputs}
    before = [{producer[value] for value in node.inputs if value in producer} for node in nodes]
    after = [
        {n for n, others in enumerate(before) if number in others} for number in range(len(nodes))
    ]

    def nearest(number, step):
        front, seen, found = set(step[number]), set(), set()
        while front:
            other = front.pop()
            seen.add(other)
            found |= known[other]
            if not known[other]:
                front |= step[other] - seen
        return found

    return [
        modules or nearest(number, before) | nearest(number, after)
        for number, modules in enumerate(known)
    ]


def true_nodes(pte, layers, plans, ledger):
    """The exported operators behind each event of a delegate, by its key.

    Their numbers are places among the delegate's ``xnodes``. Rows are those of one run, in order.
    """
    truth = {}
    run = ledger[(ledger["run"] == ledger["run"].iloc[0]) & (ledger["kind"] == "delegated")]
    for number, rows in run.groupby("instruction", sort=False):
        instruction = layers.methods[0].instructions[number]
        delegate, outer = external_ids(pte, number)
        events = nodes_of_events(plans[delegate], instruction, outer)
        assert len(rows) == len(events), (number, len(rows), len(events))
        truth |= dict(zip(rows["key"], events, strict=True))
    return truth


def true_modules(layers, nodes, record, ledger):
    """The modules that each operator's row of a ledger may be of, by its key; none if unknown.

    ``nodes`` are those that `true_nodes` found.
    """
    truth = {}
    run = ledger[ledger["run"] == ledger["run"].iloc[0]]
    for number, rows in run[run["instruction"] >= 0].groupby("instruction", sort=False):
        instruction = layers.methods[0].instructions[number]
        if instruction.xnodes:
            modules = modules_of_nodes(instruction, record)
            for key in rows.loc[rows["kind"] == "delegated", "key"]:
                truth[key] = set().union(*(modules[node] for node in nodes[key]))
        elif instruction.kind == "kernel":
            for key in rows.loc[rows["kind"] == "portable", "key"]:
                truth[key] = record.of_instruction.get(number, set())
    return truth
