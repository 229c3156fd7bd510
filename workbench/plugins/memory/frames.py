"""The frames of memory, starts and files."""

from workbench.api import Frame

COLD_START = Frame.make(
    "cold start",
    ("cache", "text", "", "warm | cold: are files in the page cache"),
    ("stage", "text", "", "part of the time from exec to the first output, in order"),
    ("meaning", "text", "", "what happens in it"),
    ("mean_ms", "float", "ms", "over the starts; the rows of a cache sum to the whole"),
    *Frame.interval("its", "ms", suffix="_ms"),
    ("share", "float", "share", "of the whole"),
    ("starts", "int", "", "processes that were measured"),
)

MEMORY = Frame.make(
    "memory",
    ("part", "text", "", "part of the largest resident set"),
    ("meaning", "text", "", "what it is"),
    ("size_bytes", "int", "B", "its size; below 0: counted, but not resident"),
    ("share", "float", "share", "of the largest resident set, to which the rows sum"),
)

FILE_PARTS = Frame.make(
    "file",
    ("part", "text", "", "program | delegate | weights | state | other | padding"),
    ("module", "text", "", "layer whose weights these are; empty for what belongs to none"),
    ("size_bytes", "int", "B", "its size in the program's file"),
    ("share", "float", "share", "of the file, to which the rows sum"),
)

TENSORS = Frame.make(
    "tensors",
    ("memory", "text", "", "arenas, planned by the exporter, or a delegate's workspace"),
    ("operator", "text", "", "operator that writes it; input for one of the program"),
    ("module", "text", "", "layer of that operator, where it is known"),
    ("source", "text", "", "its line, where it is known"),
    ("size_bytes", "int", "B", "as planned"),
    ("first", "int", "", "step at which it is written, from 0, in the order of execution"),
    ("last", "int", "", "step that reads it last"),
    ("at_peak", "bool", "", "live when most bytes of the arenas, or of any delegate, are"),
)
