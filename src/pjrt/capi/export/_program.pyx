"""Programs and compile options as a framework sends them."""

from pjrt.capi._gen_abi cimport PJRT_Program

from pjrt.api.compile_options import CompileOptions
from pjrt.api.errors import InvalidArgumentError
from pjrt.api.program import Program


cdef object read_program(const PJRT_Program *program):
    """A program that a framework sends to be compiled."""
    if program == NULL or program.code == NULL or program.format == NULL:
        raise InvalidArgumentError("expected a program with code and format, found a null pointer")
    return Program(program.code[:program.code_size], program.format[:program.format_size].decode("utf-8", "replace"))


cdef object read_options(const char *data, size_t size):
    """Compile options from the serialized ``CompileOptionsProto``."""
    return CompileOptions.from_proto(data[:size] if size else b"")
