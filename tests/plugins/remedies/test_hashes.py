"""A rewritten program stays the same: a hash of what each remedy makes of each network.

    python tests/plugins/remedies/test_hashes.py [--exact] [--programs]   # writes the table again

A graph is hashed as text, in which numbers have five digits and a constant that a remedy adds is
told by a few sums, so that vector instructions of another CPU do not matter. With ``--exact``, the
bytes of the constants are hashed instead, and the table is only printed. The bytes of whole
programs are compared on a machine with the vector instructions of the one that wrote them.
"""

import hashlib
import json
import platform
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parents[1] / "benchmarks"), str(HERE)]

import _exam  # noqa: E402
import pytest  # noqa: E402
import test_remedies  # noqa: E402
import test_rewrites  # noqa: E402
import torch  # noqa: E402
from exporting import slow  # noqa: E402
from function_net import Net  # noqa: E402
from rewriters import REWRITER  # noqa: E402
from torch import nn  # noqa: E402

import workbench as wb  # noqa: E402
from workbench.graphs import find_schema, silence  # noqa: E402

TABLE = HERE / "hashes.json"
#: Remedies that compute something else; with all others, a network is rewritten once more.
APPROXIMATE = {"gelu_tanh", "doubles"}
#: Networks whose whole program is hashed, too; those from the fourth on are further cases.
PROGRAMS = (
    "kind groups 1 | groups", "kind norms 6 | norms", "exam factors 1 | affine",
    "kind functions 3 | functions", "kind masks 1 | masks", "kind norms 0 | norms",
    "kind broadcasts 0 | broadcasts", "exam chunk | slices", "exam mm | products",
    "exam softmax of channels 1 | functions",
)  # fmt: skip


def list_networks():
    """What makes each network, with the remedies that are meant for it, and its dtype."""
    networks = {}
    for name, number in test_remedies.CASES:
        networks[f"kind {name} {number}"] = (lambda n=name, i=number: make_kind(n, i), (name,))
    for name, (function, shapes) in test_remedies.DIFFERENT.items():
        networks[f"different {name}"] = (lambda f=function, s=shapes: make_net(f, s), (name,))
    for number, (_, function, x) in enumerate(test_rewrites.SPELLINGS):
        names = ("functions", "order", "lookups")
        networks[f"spelled {number}"] = (lambda f=function, x=x: (make_spelled(f), (x,)), names)
    for number, (module, inputs, name, _) in enumerate(test_rewrites.REWRITTEN):
        networks[f"operator {number}"] = lambda m=module, x=inputs: (m, (*x,)), (name,) * bool(name)
    words = ("slices", "mean", "powers", "gelu_tanh", "norms")
    networks["words"] = lambda: (test_rewrites.Wordy(), (torch.ones(2, 3, 6),)), words
    networks["recurrent"] = lambda: (make_recurrent(), (torch.ones(1, 3, 6),)), ("slices",)
    networks["half norm"] = (
        lambda: (nn.LayerNorm(8).half(), (torch.ones(2, 8).half(),)),
        ("layer_norm",),
    )
    networks["half group norm"] = (
        lambda: (nn.GroupNorm(2, 8).half(), (torch.ones(2, 8, 3).half(),)),
        ("layer_norm",),
    )
    for case in _exam.CASES:
        names = case.fix.get("rewrite", ())
        networks[f"exam {case.name}"] = case.before, names
    return networks


def make_kind(name, number):
    function, shapes, *more = test_remedies.KINDS[name][number]
    return make_net(function, shapes, *more)


def make_net(function, shapes, buffers=None, make_layers=list):
    layers = make_layers()
    return Net(function, *layers, **buffers or {}), tuple(torch.ones(shape) for shape in shapes)


def make_spelled(function):
    return test_rewrites.Spelled(function)


def make_recurrent():
    return test_rewrites.Recurrent()


def describe(exported, exact=False):
    """A graph in text: what its output and what has no reader are made of, and how.

    Where operators do not depend on each other, their order is not told.
    """
    signature, numbers, lines = exported.graph_signature, {}, []
    targets = signature.inputs_to_parameters | signature.inputs_to_buffers
    targets |= signature.inputs_to_lifted_tensor_constants

    def name_input(node):
        target = targets.get(node.name, node.name)
        is_added = "remedy_constant" in target
        return describe_constant(exported.constants[target], exact) if is_added else target

    def say(value):
        if isinstance(value, torch.fx.Node):
            return number(value)
        if isinstance(value, float):
            return repr(value) if exact else f"{value:.5g}"
        if isinstance(value, list | tuple):
            return f"[{', '.join(map(say, value))}]"
        return str(value)

    def number(node):
        if node not in numbers:
            words = [say(each) for each in list_arguments(node)]
            value = node.meta.get("val")
            kind = f"{value.dtype} {[*value.shape]}" if isinstance(value, torch.Tensor) else ""
            what = name_input(node) if node.op == "placeholder" else str(node.target)
            numbers[node] = f"%{len(numbers)}"
            lines.append(f"{numbers[node]} {kind} = {what}({', '.join(words)})")
        return numbers[node]

    for node in exported.graph.nodes:
        if not node.users:
            number(node)
    return "\n".join(lines)


def list_arguments(node):
    """The arguments of a node, also those by default."""
    schema = find_schema(node.target)
    if schema is None:
        return node.args
    given = iter(node.args)
    return [next(given, node.kwargs.get(a.name, a.default_value)) for a in schema.arguments]


def describe_constant(tensor, exact):
    """A constant by its bytes, or by sums that no rounding of its elements changes."""
    if torch.is_complex(tensor):
        tensor = torch.view_as_real(tensor)
    if exact:
        return hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()
    values = tensor.double().flatten().nan_to_num(1e4, 1e5, -1e5)
    size = float(values.abs().max()) or 1.0
    places = torch.arange(values.numel(), dtype=torch.float64)
    weights = (torch.ones_like(places), places * 7919 % 1009 / 1009, places % 13 / 13)
    means = (float((values / size * each).mean()) for each in weights)
    return f"constant {size:.4g} {[round(each, 3) + 0.0 for each in means]}"


def list_programs(networks):
    """Each network with its own remedies, and with all of them at once."""
    everything = tuple(sorted({*REWRITER.names} - APPROXIMATE))
    for name, (make, names) in networks.items():
        if names:
            yield f"{name} | {' '.join(names)}", make, names
        yield f"{name} | all", make, everything


def rewrite(make, names, exact=False):
    """The hash of a network's rewritten graph, and how often each remedy changed it."""
    torch.manual_seed(0)
    module, inputs = make()
    with silence():
        exported = torch.export.export(module.eval(), inputs)
        exported = REWRITER.prepare(exported, names)
        counts = REWRITER.apply(exported, names, "xnnpack")
    text = describe(exported, exact)
    changes = " ".join(f"{count} {name}" for name, count in sorted(counts.items()) if count)
    return f"{hashlib.sha256(text.encode()).hexdigest()[:16]} {changes}".strip(), text


def export(make, names, root):
    """The hash of a network's whole program."""
    torch.manual_seed(0)
    module, inputs = make()
    options = wb.ExportOptions(rewrite=names)
    quiet = lambda text, fraction: None  # noqa: E731
    program = wb.export_model(module.eval(), inputs, options, root=root, progress=quiet)
    return hashlib.sha256(program.path.read_bytes()).hexdigest()


def name_machine():
    """The vector instructions on which the last bits of constants depend."""
    return f"{platform.system()} {platform.machine()} {torch.backends.cpu.get_cpu_capability()}"


PROGRAMS_OF_NETWORKS = {key: (make, names) for key, make, names in list_programs(list_networks())}
GRAPHS = json.loads(TABLE.read_text())["graphs"]


def mark(key):
    """A case; a further one is of the remedies meant for a network, or of a kind's third or later.

    That each network of a kind is found and computes the same, `test_remedies` shows.
    """
    name, _, names = key.partition(" | ")
    number = name.rpartition(" ")[2]
    is_own = names != "all" and APPROXIMATE.isdisjoint(names.split())
    is_further = is_own or (number.isdigit() and int(number) > 1)
    return slow(key) if is_further else pytest.param(key)


@pytest.mark.parametrize("key", map(mark, PROGRAMS_OF_NETWORKS))
def test_a_rewritten_graph_is_the_one_in_the_table(key):
    result, text = rewrite(*PROGRAMS_OF_NETWORKS[key])
    assert result == GRAPHS[key], f"{text}\nif it is right: python {Path(__file__).name}"


def test_the_table_has_each_network():
    assert GRAPHS.keys() == PROGRAMS_OF_NETWORKS.keys()


@pytest.mark.whole
@pytest.mark.parametrize("key", [*PROGRAMS[:3], *map(slow, PROGRAMS[3:])])
def test_a_rewritten_program_has_the_bytes_in_the_table(key, tmp_path):
    table = json.loads(TABLE.read_text())
    if table["machine"] != name_machine():
        pytest.skip(f"the table is of {table['machine']}")
    assert export(*PROGRAMS_OF_NETWORKS[key], tmp_path) == table["programs"][key]


def write_table(arguments):
    """Write the table, or print an exact one."""
    exact = "--exact" in arguments
    graphs = {
        key: rewrite(make, names, exact)[0] for key, (make, names) in PROGRAMS_OF_NETWORKS.items()
    }
    programs = {}
    if not exact:
        with tempfile.TemporaryDirectory() as root:
            programs = {key: export(*PROGRAMS_OF_NETWORKS[key], Path(root)) for key in PROGRAMS}
    table = {"machine": name_machine(), "graphs": graphs, "programs": programs}
    text = json.dumps(table, indent=1) + "\n"
    print(text, end="") if exact else TABLE.write_text(text)


if __name__ == "__main__":
    write_table(sys.argv[1:])
