"""The fields of the tables in ExecuTorch's etdump_schema_flatcc.fbs, by number."""

from enum import IntEnum

ETDump = IntEnum("ETDump", "VERSION RUN_DATA", start=0)
RunData = IntEnum("RunData", "NAME BUNDLED_INPUT ALLOCATORS EVENTS", start=0)
Allocator = IntEnum("Allocator", "NAME", start=0)
Event = IntEnum("Event", "PROFILE ALLOCATION DEBUG", start=0)
Profile = IntEnum(
    "Profile", "NAME CHAIN INSTRUCTION DELEGATE_INT DELEGATE_STR METADATA START END", start=0
)
Allocation = IntEnum("Allocation", "ALLOCATOR SIZE", start=0)
Debug = IntEnum("Debug", "CHAIN INSTRUCTION ENTRY DELEGATE_INT DELEGATE_STR NAME", start=0)
Value = IntEnum("Value", "TYPE TENSOR TENSOR_LIST INT FLOAT DOUBLE BOOL OUTPUT", start=0)
Tensor = IntEnum("Tensor", "DTYPE SIZES STRIDES OFFSET", start=0)

#: The one field of the tables TensorList, Int, Float, Double and Bool.
CONTENT = 0
