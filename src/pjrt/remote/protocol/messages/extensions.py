"""The messages that are this package's own: calls of functions on the server, saved executables, and programs."""

from __future__ import annotations

from pjrt.api.protobuf import MessageTable

OWN_KINDS = {
    "call_function": 1000,
    "serialize_executable": 1001,
    "load_executable": 1002,
    "optimized_program": 1003,
}
"""The kinds of requests that the IFRT proxy protocol lacks, with the numbers of their fields."""

# message: {field: (number, type) or (number, type, oneof)}; a type in brackets is repeated.
EXTENSIONS: MessageTable = {
    "CallFunctionRequest": {
        "function": (1, "bytes"),
        "array_handles": (2, "[fixed64]"),
        "result_specs": (3, "[ArraySpecProto]"),
        "result_array_handles": (4, "[fixed64]"),
        "worker": (5, "int64"),
    },
    "CallFunctionResponse": {"result": (1, "bytes")},
    "SerializeExecutableRequest": {"loaded_executable_handle": (1, "fixed64")},
    "SerializeExecutableResponse": {"serialized_executable": (1, "bytes")},
    # A client keeps this message as the saved executable.
    "LoadExecutableRequest": {
        "program": (1, "Serialized"),
        "compile_options": (2, "Serialized"),
        "serialized_executable": (3, "bytes"),
    },
    "LoadExecutableResponse": {"compiled": (1, "CompileResponse")},
    # The protocol has the program as text, without what HLO text leaves out, such as the shardings that XLA notes.
    "OptimizedProgramRequest": {"loaded_executable_handle": (1, "fixed64")},
    "OptimizedProgramResponse": {"format": (1, "string"), "code": (2, "bytes")},
}
