"""Programs are read from their bytes; whatever the bytes are, the worst is one clear error."""

import struct
from itertools import pairwise
from pathlib import Path

import pytest

from workbench.errors import StoreError
from workbench.export.flops import kernel_flops, xnode_flops
from workbench.export.pte import parse_schema, read_flatbuffer
from workbench.export.sidecar import outline_pte
from workbench.records.codec import parse_json, structure, to_json
from workbench.records.layer_sidecar import Layers

PTE = (Path(__file__).parent / "data" / "etdump" / "two_methods.pte").read_bytes()

SCHEMA = parse_schema(
    """
    enum Color : short { red, green = 5, blue }  // a comment; with } in it
    union Shape { Circle: Round, Square }
    table Round { radius: float = 1.5; }
    table Square { side: uint = 7; name: string (deprecated); }
    table Root { color: space.Color = blue; on: bool = true; shape: Shape; sizes: [int];
                 items: [Square]; after: ulong; }
    """
)


def table(*fields, tail=b""):
    """A table with its layout before it: per field, an offset within it; then its bytes."""
    layout = struct.pack(f"<HH{len(fields)}H", 4 + 2 * len(fields), 4 + len(tail), *fields)
    layout += b"\0" * (-len(layout) % 4)
    at = 4 + len(layout)
    return struct.pack("<I", at) + layout + struct.pack("<i", at - 4) + tail


def read(data, root="Root"):
    return read_flatbuffer(memoryview(data), SCHEMA, root)


def test_absent_fields_have_their_defaults():
    assert read(table()) == {
        "color": "blue",
        "on": True,
        "shape": None,
        "sizes": [],
        "items": [],
        "after": 0,
    }
    assert read(table(), "Round") == {"radius": 1.5}


def test_a_union_takes_two_places():
    assert SCHEMA["union"]["Shape"] == [("Circle", "Round"), ("Square", "Square")]
    assert SCHEMA["enum"]["Color"] == ("h", {0: "red", 5: "green", 6: "blue"})
    data = table(0, 0, 0, 0, 0, 0, 4, tail=struct.pack("<Q", 3))
    assert read(data)["after"] == 3


def test_a_union_of_an_unknown_kind_is_none():
    data = table(0, 0, 4, 5, tail=struct.pack("<BxxxI", 9, 0))
    assert read(data)["shape"] is None


def test_a_vector_beyond_the_end_is_refused():
    sizes = struct.pack("<II", 4, 10**6)
    with pytest.raises(ValueError, match=r"malformed \(at byte \d+\)"):
        read(table(0, 0, 0, 0, 4, tail=sizes))


def test_tables_that_share_bytes_do_not_multiply():
    """References to one table, from a table that is itself referred to many times, and so on."""
    schema = parse_schema("table Root { next: [Root]; }")

    def leaves(tree):
        return sum(map(leaves, tree["next"])) if tree["next"] else 1

    few = read_flatbuffer(memoryview(_pyramid(width=2, depth=3)), schema, "Root")
    assert leaves(few) == 8
    bomb = _pyramid(width=60, depth=6)
    assert len(bomb) < 2000
    with pytest.raises(ValueError, match="malformed"):
        read_flatbuffer(memoryview(bomb), schema, "Root")


def _pyramid(width, depth):
    """Tables, each with ``width`` references to the next one; the last has none."""
    layout = struct.pack("<HHHH", 6, 8, 4, 0)
    size = len(layout) + 8 + 4 + 4 * width
    tables = [4 + level * size + len(layout) for level in range(depth)]
    tables.append(4 + depth * size + 4)
    data = bytearray(struct.pack("<I", tables[0]))
    for start, following in pairwise(tables):
        references = range(start + 12, start + 12 + 4 * width, 4)
        data += layout + struct.pack("<iII", len(layout), 4, width)
        data += b"".join(struct.pack("<I", following - place) for place in references)
    return bytes(data + struct.pack("<HHi", 4, 4, 4))


def test_a_program_is_described_from_its_bytes():
    layers = outline_pte(PTE, "two_methods.pte")
    first, second = layers.methods
    assert [i.kind for i in first.instructions] == ["delegate", "kernel", "delegate"]
    assert [i.name for i in second.instructions][1] == "aten::mean.out"
    elu = first.instructions[1]
    assert elu.name == "aten::elu.out"
    assert [first.values[n].shape for n in (*elu.inputs, *elu.outputs)] == [(1, 8), (1, 8)]
    assert (elu.flops, elu.bytes) == (8, 64)
    conv = next(x for x in second.instructions[0].xnodes if x.type == "Conv2d")
    assert conv.flops == 2 * 256 * conv.attributes["group_input_channels"] * 9
    assert all(not method.origins and not method.modules for method in layers.methods)
    assert structure(Layers, parse_json(to_json(layers), ""), "") == layers


@pytest.mark.parametrize("data", [b"", b"ET12", b"\0" * 64, PTE[:20], PTE[: len(PTE) // 2]])
def test_what_is_no_program_is_one_line(data):
    with pytest.raises(StoreError, match=r"^x\.pte: ") as caught:
        outline_pte(data, "x.pte")
    assert "\n" not in str(caught.value)


def test_costs_are_those_of_the_formulas():
    conv = {"group_input_channels": 3, "kernel_height": 3, "kernel_width": 3}
    assert xnode_flops("Conv2d", conv, [(1, 8, 8, 3)], (1, 8, 8, 16)) == 2 * 1024 * 27
    deconv = {"group_output_channels": 4, "kernel_height": 2, "kernel_width": 2}
    assert xnode_flops("ConvTranspose2d", deconv, [(1, 5, 5, 6)], (1, 10, 10, 4)) == 2 * 150 * 16
    assert xnode_flops("FullyConnected", {}, [(7, 20)], (7, 30)) == 2 * 7 * 30 * 20
    assert xnode_flops("StaticTranspose", {}, [(4, 5)], (5, 4)) == 0
    assert kernel_flops("aten::mm.out", [(3, 4), (4, 5)], [(3, 5)]) == 120
    assert kernel_flops("aten::mean.out", [(3, 4)], [(3,)]) == 12
    assert kernel_flops("aten::view_copy.out", [(3, 4)], [(12,)]) == 0
    assert kernel_flops("mine::unheard_of.out", [(3, 4)], [(12,)]) is None
