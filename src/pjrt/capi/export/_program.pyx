"""Programs and compile options as a framework sends them."""

from pjrt.abi.generated.declarations cimport PJRT_Program, PJRT_Program_FIRST_STRUCT_SIZE

from pjrt.api.compile_options import CompileOptions
from pjrt.api.errors import InvalidArgumentError
from pjrt.api.program import Program, ProgramFormat

_XLA_FORMATS = frozenset(str(each) for each in ProgramFormat)


cdef int check_program_size(const PJRT_Program *program) except -1:
    """Raise ``InvalidArgumentError`` if there is no program, or its struct is too short."""
    if program == NULL:
        raise InvalidArgumentError("expected a program with code and format, found a null pointer")
    if program.struct_size < PJRT_Program_FIRST_STRUCT_SIZE:
        size = PJRT_Program_FIRST_STRUCT_SIZE
        raise InvalidArgumentError(
            f"expected at least {size} bytes of PJRT_Program, found struct_size {program.struct_size}"
        )


cdef object read_program(const PJRT_Program *program, compiler):
    """Return the program that a framework sends to a client or a topology to be compiled.

    Raises:
        InvalidArgumentError: the format is none of XLA's, nor one that the compiler declares; or the struct is too
            short.
    """
    check_program_size(program)
    if program.format == NULL:
        raise InvalidArgumentError("expected a program with code and format, found a null pointer")
    format_name = program.format[:program.format_size].decode("utf-8", "replace")
    if format_name not in _XLA_FORMATS:
        formats = compiler.capabilities.program_formats
        if formats is not None and format_name not in formats:
            raise InvalidArgumentError(f"Unknown program format '{format_name}'.")  # XLA's words
    if program.code == NULL:
        raise InvalidArgumentError("expected a program with code and format, found a null pointer")
    return Program(program.code[:program.code_size], format_name)


cdef object read_options(const char *data, size_t size):
    """Return compile options from a serialized ``CompileOptionsProto``."""
    cdef bytes serialized = data[:size] if size else b""
    try:
        return CompileOptions.from_proto(serialized)
    except InvalidArgumentError as error:
        from google.protobuf.message import DecodeError

        if not isinstance(error.__cause__, DecodeError):
            raise
        raise InvalidArgumentError(
            "PJRT_Client_Compile: failed to deserialize CompileOptionsProto"  # XLA's words, also for topologies
        ) from error
