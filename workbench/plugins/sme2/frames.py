"""The frame of predicted kernels."""

from workbench.api import Frame

SME2 = Frame.make(
    "sme2",
    ("instruction", "int", "", "which instruction of the method"),
    ("xnodes", "text", "", "operators of the sidecar's delegate that it does; empty for a kernel"),
    ("operator", "text", "", "type of the exported operator, or the kernel"),
    "module",
    ("dtype", "text", "", "of its first input and of its weights"),
    "shapes",
    ("m", "float", "", "rows of the matrix product; NaN if it is none"),
    ("n", "float", "", "columns of the product, in each group"),
    ("k", "float", "", "terms of each sum"),
    ("flops", "float", "FLOP/call", "floating-point operations; NaN where unknown"),
    ("kernel_off", "text", "", "kernel without SME2: sme2_mopa | i8mm | neon | portable | ..."),
    ("kernel_on", "text", "", "kernel with SME2"),
    ("reason", "text", "", "what limits it with SME2; empty if nothing is known to"),
    ("remedy", "text", "", "what would bring it onto SME2"),
)
