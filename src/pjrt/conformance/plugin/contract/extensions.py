"""The requirements of extensions: FFI, profilers, callbacks, streams, phases, ABI versions, shardings, metadata."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from pjrt.abi.schema import FUNCTIONS, STRUCTS
from pjrt.api.errors import InternalError, StatusCode
from pjrt.capi import raw
from pjrt.capi.raw.struct import StructWriter, load
from pjrt.conformance.plugin.check import Unsupported, check
from pjrt.conformance.plugin.contract.executions.launch import Launch
from pjrt.conformance.plugin.contract.programs.compilation import OPTIONS, expect_sum
from pjrt.conformance.plugin.contract.programs.executables import answer_of, delete, executable_of, reread
from pjrt.conformance.plugin.samples import HANDLER
from pjrt.conformance.plugin.subject import Subject

# The extension FFI: types, user data, and handlers that programs call.

_REGISTER_TYPE, _ADD_DATA, _REGISTER_HANDLER = (
    "PJRT_FFI_Type_Register",
    "PJRT_FFI_UserData_Add",
    "PJRT_FFI_Register_Handler",
)
_X = np.arange(4, dtype=np.float32)
_numbers = itertools.count(1)


def compiled_with_handler(subject: Subject, sample: str) -> int:
    """Return the executable of a program that calls the handler, which is registered here.

    A plugin of another format has its own way to fail in its program ``fails``, and needs no handler for it.
    """
    if subject.program(sample).format == "mlir" or sample == "calls_handler":
        register_handler(subject, HANDLER, _multiply)
    return subject.compile(sample)


def register_handler(subject: Subject, name: str, function: Callable[..., Any]) -> None:
    """Register a Python function as a handler of the client's platform.

    Raises:
        Unsupported: the plugin lacks the extension, or its programs do not run in the host's memory.
    """
    subject.require_extension("FFI")
    subject.require(_REGISTER_HANDLER)
    try:
        from pjrt.devices.xla.ffi_handler import handler_of
    except ImportError as error:
        raise Unsupported(f"a handler needs jaxlib: {error}") from error
    platform = subject.call("PJRT_Client_PlatformName", client=subject.client).platform_name
    on_host = subject.call("PJRT_Buffer_IsOnCpu", buffer=subject.buffer(_X)).is_on_cpu
    if not on_host:
        raise Unsupported("a handler of this package reads the host's memory, and the plugin's buffers are elsewhere")
    subject.call(
        _REGISTER_HANDLER, target_name=name, handler=handler_of(function, 0), platform_name=bytes(platform), traits=0
    )


def _multiply(x: Any, out: Any, *, fails: bool = False) -> None:
    if fails:
        raise InternalError("the wheel came off")
    np.multiply(x, 2, out=out)


def _type(subject: Subject, name: str, number: int = 0) -> Any:
    subject.require_extension("FFI")
    # The header does not say that the information may be null, and plugins of XLA read it.
    return subject.attempt(_REGISTER_TYPE, type_name=name, type_id=number, type_info=raw.Struct("PJRT_FFI_Type_Info"))


def _new_name() -> str:
    return f"pjrt_conformance_type_{next(_numbers)}"


@check("ffi.type_register.assigns_an_id", calls=(_REGISTER_TYPE,))
def _assigns(subject: Subject) -> None:
    """With type_id 0 the plugin assigns an id to the type; different names have different ids."""
    subject.require(_REGISTER_TYPE)
    numbers = []
    for _ in range(3):
        answer = _type(subject, _new_name())
        subject.expect(answer.error is None, "a registered type", str(answer.error))
        numbers.append(answer.type_id)
    subject.expect(len(set(numbers)) == 3 and 0 not in numbers, "3 different ids, none 0", str(numbers))


@check("ffi.type_register.twice", calls=(_REGISTER_TYPE,))
def _twice(subject: Subject) -> None:
    """A name that is registered again keeps its id, or is refused with an error."""
    name = _new_name()
    first, second = _type(subject, name), _type(subject, name)
    subject.expect(first.error is None, "a registered type", str(first.error))
    if second.error is None:
        subject.expect(second.type_id == first.type_id, f"the id {first.type_id}", str(second.type_id))


@check("ffi.type_register.another_id", calls=(_REGISTER_TYPE,))
def _another_id(subject: Subject) -> None:
    """A type_id other than 0 must be the one that the name has; another is refused with an error."""
    name = _new_name()
    first = _type(subject, name)
    subject.expect(first.error is None, "a registered type", str(first.error))
    answer = _type(subject, name, first.type_id + 1000)
    subject.expect(answer.error is not None, "an error", f"the name with the id {first.type_id + 1000}")


@check(
    "ffi.user_data_add", calls=(_REGISTER_TYPE, _ADD_DATA, "PJRT_ExecuteContext_Create", "PJRT_ExecuteContext_Destroy")
)
def _user_data(subject: Subject) -> None:
    """User data is added to an execute context by the id of its type; the context does not own it."""
    subject.require(_ADD_DATA, "PJRT_ExecuteContext_Create")
    number = _type(subject, _new_name()).type_id
    context = subject.call("PJRT_ExecuteContext_Create").context
    memory = ctypes.create_string_buffer(b"user data")
    subject.call(_ADD_DATA, context=context, user_data={"type_id": number, "data": ctypes.addressof(memory)})
    subject.call("PJRT_ExecuteContext_Destroy", context=context)
    subject.expect(memory.value == b"user data", "the data as it was", repr(memory.value))


@check("ffi.user_data_add.twice", calls=(_REGISTER_TYPE, _ADD_DATA))
def _user_data_twice(subject: Subject) -> None:
    """A context has one entry of user data for each type; a second one is refused, or replaces the first."""
    subject.require(_ADD_DATA, "PJRT_ExecuteContext_Create")
    number = _type(subject, _new_name()).type_id
    context = subject.call("PJRT_ExecuteContext_Create").context
    data = {"type_id": number, "data": 8}
    subject.call(_ADD_DATA, context=context, user_data=data)
    subject.attempt(_ADD_DATA, context=context, user_data=data)


@check("ffi.handler.is_called", calls=(_REGISTER_HANDLER, "PJRT_Client_Compile", "PJRT_LoadedExecutable_Execute"))
def _is_called(subject: Subject) -> None:
    """A registered handler is called by programs that name it, with their arguments and results."""
    loaded = compiled_with_handler(subject, "calls_handler")
    for factor in (1, 5):
        Launch(subject, loaded, [[subject.buffer(_X * factor)]]).expect(_X * factor * 2)


@check("ffi.handler.error", calls=(_REGISTER_HANDLER, "PJRT_LoadedExecutable_Execute", "PJRT_Event_Await"))
def _handler_error(subject: Subject) -> None:
    """The error of a handler is the error of the execution; the client goes on."""
    register_handler(subject, HANDLER, _multiply)
    loaded = subject.compile("fails")
    launch = Launch(subject, loaded, [[subject.buffer(_X)]], with_events=True)
    launch.expect_error(None, "the wheel came off")
    expect_sum(subject, subject.compile("add"))


@check("ffi.handler.registered_again", calls=(_REGISTER_HANDLER,))
def _registered_again(subject: Subject) -> None:
    """A name whose handler is registered again keeps it; another handler is refused, or takes its place."""
    register_handler(subject, HANDLER, _multiply)
    register_handler(subject, HANDLER, _multiply)
    Launch(subject, subject.compile("calls_handler"), [[subject.buffer(_X)]]).expect(_X * 2)


@check("ffi.handler.unknown", calls=("PJRT_Client_Compile", "PJRT_LoadedExecutable_Execute"))
def _ffi_handler_unknown(subject: Subject) -> None:
    """A program that calls a handler of an unknown name is refused: it does not compile, or its execution fails."""
    answer = subject.attempt_compile(subject.program("calls_handler"))
    if answer.error is None:
        Launch(subject, answer.executable, [[subject.buffer(_X)]]).expect_error()
    expect_sum(subject, subject.compile("add"))


# The extension Profiler: a recorder of traces, with a table of functions of its own.

_PROFILER_FUNCTIONS = tuple(name for name, function in FUNCTIONS.items() if function.extension == "Profiler")
_ProfilerFunction = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
_TABLE_OF_EXTENSION, _FIRST_SLOT = 24, 16


class Profiler:
    """A profiler of the plugin, made by the check."""

    def __init__(self, subject: Subject) -> None:
        self._table = load(subject.require_extension("Profiler") + _TABLE_OF_EXTENSION)
        if not self._table:
            raise Unsupported("a profiler: the extension has no table of functions")
        self._subject = subject
        answer = self.attempt("PLUGIN_Profiler_Create", options=b"")
        if answer.error:
            raise Unsupported("a profiler: it cannot be made")
        self.handle = answer.number("profiler")

    def call(self, name: str, **fields: Any) -> _Answer:
        """Call a function with the profiler, which must succeed."""
        answer = self.attempt(name, profiler=self.handle, **fields)
        self._subject.expect(not answer.error, f"{name} to succeed", "an error")
        return answer

    def attempt(self, name: str, **fields: Any) -> _Answer:
        """Call a function of the table."""
        slot = load(self._table + _FIRST_SLOT + 8 * _PROFILER_FUNCTIONS.index(name))
        self._subject.expect(bool(slot), f"a function {name}", "null")
        return _Answer(name, slot, fields)


class _Answer:
    """A call of the profiler's table, and the memory of its arguments."""

    def __init__(self, name: str, slot: int, fields: dict[str, Any]) -> None:
        self._writer = StructWriter()
        self._spec = STRUCTS[FUNCTIONS[name].args]
        self._address = self._writer.build(self._spec.name, fields)
        self.error = int(_ProfilerFunction(slot)(self._address) or 0)

    def number(self, field: str) -> int:
        """Return a field of eight bytes."""
        return int(load(self._address + self._spec.fields[field].offset))


@check("profiler.records", calls=_PROFILER_FUNCTIONS[3:])
def _records(subject: Subject) -> None:
    """A profiler is started and stopped, and then collects its data: first the size, then the bytes."""
    loaded = subject.compile("add")
    profiler = Profiler(subject)
    profiler.call("PLUGIN_Profiler_Start")
    expect_sum(subject, loaded)
    profiler.call("PLUGIN_Profiler_Stop")
    size = profiler.call("PLUGIN_Profiler_CollectData", buffer=0).number("buffer_size_in_bytes")
    subject.expect(size < 1 << 30, "the size of the data", str(size))
    memory = np.full(size + 64, 0xA5, np.uint8)
    profiler.call("PLUGIN_Profiler_CollectData", buffer=memory.ctypes.data, buffer_size_in_bytes=size)
    behind = bool((memory[size:] == 0xA5).all())
    subject.expect(behind, "memory behind the data as it was", "memory that was written")
    profiler.call("PLUGIN_Profiler_Destroy")


@check("profiler.one_after_the_other", calls=_PROFILER_FUNCTIONS[3:])
def _one_after_another(subject: Subject) -> None:
    """Each profiler belongs to the caller, who destroys it; another may be made then."""
    for _ in range(3):
        profiler = Profiler(subject)
        profiler.call("PLUGIN_Profiler_Start")
        profiler.call("PLUGIN_Profiler_Stop")
        profiler.call("PLUGIN_Profiler_Destroy")


@check("profiler.destroyed_before_it_starts", calls=("PLUGIN_Profiler_Create", "PLUGIN_Profiler_Destroy"))
def _unused(subject: Subject) -> None:
    """A profiler may be destroyed without being started."""
    Profiler(subject).call("PLUGIN_Profiler_Destroy")


# The extension Callback: functions that a client calls when something happens to it.

_REGISTER_CALLBACK, _INVOKE_CALLBACK = "PJRT_Callback_RegisterCallback", "PJRT_Callback_InvokeCallback"
_PREFATAL = 2


class _CallbackRecord:
    """A callback that records the user data of its calls."""

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.kept: list[object] = []

    def __call__(self, arguments: int, user_arg: int) -> None:
        """Record a call."""
        self.calls.append(user_arg)


def _register_callback(subject: Subject, record: _CallbackRecord, user_arg: int) -> None:
    subject.require_extension("Callback")
    answer = subject.attempt(
        _REGISTER_CALLBACK, client=subject.client, type=_PREFATAL, callback=record, user_arg=user_arg
    )
    if answer.error is not None:
        raise Unsupported(f"callbacks before the end of a process: {answer.error}")
    record.kept.append(answer)  # the function lives as long as it


def _invoke_callback(subject: Subject) -> None:
    fields = STRUCTS["PJRT_Callback_PrefatalArgs"].fields
    memory = ctypes.create_string_buffer(STRUCTS["PJRT_Callback_PrefatalArgs"].size)
    ctypes.c_size_t.from_buffer(memory).value = len(memory)
    ctypes.c_int.from_buffer(memory, fields["error_code"].offset).value = StatusCode.INTERNAL
    subject.call(_INVOKE_CALLBACK, client=subject.client, type=_PREFATAL, args=ctypes.addressof(memory))


@check("callback.invoke", calls=(_REGISTER_CALLBACK, _INVOKE_CALLBACK))
def _invoked(subject: Subject) -> None:
    """PJRT_Callback_InvokeCallback calls the callbacks of the type, with their user data, before it returns."""
    record = _CallbackRecord()
    _register_callback(subject, record, 41)
    _invoke_callback(subject)
    subject.expect(record.calls == [41], "one call with the user data 41", str(record.calls))


@check("callback.several", calls=(_REGISTER_CALLBACK, _INVOKE_CALLBACK))
def _several(subject: Subject) -> None:
    """All callbacks of a type are called."""
    first, second = _CallbackRecord(), _CallbackRecord()
    _register_callback(subject, first, 1)
    _register_callback(subject, second, 2)
    _invoke_callback(subject)
    calls = (first.calls, second.calls)
    subject.expect(calls == ([1], [2]), "one call of each", str(calls))


# The extension Stream: the queue of a device that other code waits for.

_GET_STREAM, _WAIT_ON_STREAM = "PJRT_Get_Stream_For_External_Ready_Events", "PJRT_Wait_Until_Buffer_Ready_On_Stream"


@check("stream.waits_for_a_buffer", calls=(_GET_STREAM, _WAIT_ON_STREAM))
def _waits(subject: Subject) -> None:
    """A stream of a device can be told to wait until a buffer has its value."""
    subject.require_extension("Stream")
    stream = answer_of(subject, _GET_STREAM, device=subject.device).stream
    array = np.arange(4, dtype=np.float32)
    buffer = subject.buffer(array)
    answer_of(subject, _WAIT_ON_STREAM, stream=stream, buffer=buffer)
    subject.expect_contents(buffer, array)


# The extension PhaseCompile: compiling phase by phase.

_GET_COMPILER, _DESTROY_COMPILER = "PJRT_PhaseCompile_Get_Compiler", "PJRT_PhaseCompile_Destroy_Compiler"
_PHASE_NAMES, _RUN_PHASE = "PJRT_PhaseCompile_Get_PhaseNames", "PJRT_PhaseCompile_Run_Phase"


def _compiler(subject: Subject) -> int:
    subject.require_extension("PhaseCompile")
    return int(answer_of(subject, _GET_COMPILER).phase_compiler)


def _phases(subject: Subject, compiler: int) -> list[bytes]:
    answer = answer_of(subject, _PHASE_NAMES, phase_compiler=compiler)
    return [bytes(name) for name in answer.phase_names or ()]


@check("phase_compile.compiler", calls=(_GET_COMPILER, _DESTROY_COMPILER))
def _get(subject: Subject) -> None:
    """Each phase compiler belongs to the caller, who destroys it."""
    compilers = [_compiler(subject) for _ in range(3)]
    subject.expect(all(compilers), "compilers", str(compilers))
    for compiler in compilers:
        subject.attempt(_DESTROY_COMPILER, phase_compiler=compiler)


@check("phase_compile.phase_names", calls=(_PHASE_NAMES,))
def _names(subject: Subject) -> None:
    """The phases have names, in the order in which they run."""
    compiler = _compiler(subject)
    names = _phases(subject, compiler)
    subject.expect(b"" not in names and len(set(names)) == len(names), "names that are unique", str(names))
    again = _phases(subject, compiler)
    subject.expect(again == names, str(names), str(again))


def _run_phase(subject: Subject, compiler: int, phases: list[bytes]) -> Any:
    topology = answer_of(subject, "PJRT_Client_TopologyDescription", client=subject.client).topology
    code = subject.program("add").code
    return subject.attempt(
        _RUN_PHASE,
        phase_compiler=compiler,
        input_programs=[code],
        input_programs_sizes=[len(code)],
        phases_to_run=phases,
        phases_to_run_sizes=[len(phase) for phase in phases],
        compile_options=OPTIONS,
        topology=topology,
    )


@check("phase_compile.unknown_phase", calls=(_RUN_PHASE,))
def _phase_compile_unknown_phase(subject: Subject) -> None:
    """A phase of an unknown name is refused with an error."""
    compiler = _compiler(subject)
    answer = _run_phase(subject, compiler, [b"no such phase"])
    subject.expect(answer.error is not None, "an error", "a program")
    subject.attempt(_DESTROY_COMPILER, phase_compiler=compiler)


# The extension AbiVersion: whether executables fit a runtime.

_RUNTIME_VERSION = "PJRT_Client_RuntimeAbiVersion"
_EXECUTABLE_VERSION = "PJRT_Executable_GetAbiVersion"


def _runtime_version(subject: Subject) -> int:
    subject.require_extension("AbiVersion")
    return int(answer_of(subject, _RUNTIME_VERSION, client=subject.client).abi_version)


def _executable_version(subject: Subject) -> int:
    subject.require_extension("AbiVersion")
    return int(answer_of(subject, _EXECUTABLE_VERSION, executable=executable_of(subject, "add")).abi_version)


def _proto(subject: Subject, name: str, version: int) -> bytes:
    answer: Any = answer_of(subject, name, abi_version=version)
    data = bytes(answer.serialized_proto or b"")
    delete(answer.serialized_proto_deleter, answer.serialized_proto_holder)
    return data


@check(
    "abi_version.runtime_fits_itself",
    calls=(_RUNTIME_VERSION, "PJRT_RuntimeAbiVersion_IsCompatibleWithRuntime", "PJRT_RuntimeAbiVersion_Destroy"),
)
def _itself(subject: Subject) -> None:
    """A runtime is compatible with one of the same version: the call returns no error."""
    first, second = _runtime_version(subject), _runtime_version(subject)
    answer_of(
        subject,
        "PJRT_RuntimeAbiVersion_IsCompatibleWithRuntime",
        abi_version=first,
        other_abi_version=second,
    )
    for version in (first, second):
        subject.call("PJRT_RuntimeAbiVersion_Destroy", abi_version=version)


@check(
    "abi_version.executable_fits",
    calls=(_RUNTIME_VERSION, _EXECUTABLE_VERSION, "PJRT_RuntimeAbiVersion_IsCompatibleWithExecutable"),
)
def _fits(subject: Subject) -> None:
    """An executable is compatible with the runtime that compiled it."""
    answer_of(
        subject,
        "PJRT_RuntimeAbiVersion_IsCompatibleWithExecutable",
        abi_version=_runtime_version(subject),
        executable_abi_version=_executable_version(subject),
    )


@check("abi_version.platform_id", calls=("PJRT_RuntimeAbiVersion_PlatformId", "PJRT_ExecutableAbiVersion_PlatformId"))
def _platform(subject: Subject) -> None:
    """A runtime and the executables that it compiles have the same platform id."""
    runtime = answer_of(subject, "PJRT_RuntimeAbiVersion_PlatformId", abi_version=_runtime_version(subject)).platform_id
    executable = answer_of(
        subject, "PJRT_ExecutableAbiVersion_PlatformId", abi_version=_executable_version(subject)
    ).platform_id
    subject.expect(runtime == executable, f"the platform id {runtime}", str(executable))


@check(
    "abi_version.proto",
    calls=(
        "PJRT_RuntimeAbiVersion_ToProto",
        "PJRT_RuntimeAbiVersion_FromProto",
        "PJRT_ExecutableAbiVersion_ToProto",
        "PJRT_ExecutableAbiVersion_FromProto",
    ),
    over=("Runtime", "Executable"),
)
def _round_trip(subject: Subject, kind: str) -> None:
    """A version is written to bytes, which its deleter frees, and is read from them again."""
    version = _runtime_version(subject) if kind == "Runtime" else _executable_version(subject)
    data = _proto(subject, f"PJRT_{kind}AbiVersion_ToProto", version)
    again = answer_of(subject, f"PJRT_{kind}AbiVersion_FromProto", serialized_proto=data).abi_version
    subject.expect(again != version, "a new handle", "the same handle")
    subject.call(f"PJRT_{kind}AbiVersion_Destroy", abi_version=version)
    after = _proto(subject, f"PJRT_{kind}AbiVersion_ToProto", again)
    subject.expect(after == data, repr(data), repr(after))
    subject.call(f"PJRT_{kind}AbiVersion_Destroy", abi_version=again)


@check(
    "abi_version.damaged_proto",
    calls=("PJRT_RuntimeAbiVersion_FromProto", "PJRT_ExecutableAbiVersion_FromProto"),
    over=("Runtime", "Executable"),
)
def _damaged(subject: Subject, kind: str) -> None:
    """Bytes that are no version are refused with an error."""
    _runtime_version(subject)
    answer = subject.attempt(f"PJRT_{kind}AbiVersion_FromProto", serialized_proto=b"\xff\xff\xff\xff\x0f")
    subject.expect(answer.error is not None, "an error", "a version")


# The extensions that answer about executables: Shardings and ExecutableMetadata.

_PARAMETERS = "PJRT_Shardings_PJRT_Executable_ParameterShardings"
_OUTPUTS = "PJRT_Shardings_PJRT_Executable_OutputShardings"
_METADATA = "PJRT_ExecutableMetadata_GetExecutableMetadata"
_DESTROY_METADATA = "PJRT_ExecutableMetadata_DestroySerializedMetadata"


@check(
    "shardings.counts",
    calls=(_PARAMETERS, _OUTPUTS),
    over={"parameters": (_PARAMETERS, "num_parameters", 2), "outputs": (_OUTPUTS, "num_outputs", 1)},
)
def _counts(subject: Subject, case: tuple[str, str, int]) -> None:
    """There is a sharding for each parameter and each result, or null where the executable has none."""
    name, field, count = case
    subject.require_extension("Shardings")
    answer = answer_of(subject, name, executable=executable_of(subject, "add"))
    if answer.shardings:
        number = getattr(answer, field)
        subject.expect(number == count == len(answer.shardings), f"{count} shardings", f"{number}: {answer.shardings}")


@check("shardings.live_as_long_as_the_executable", calls=(_OUTPUTS,))
def _live(subject: Subject) -> None:
    """The shardings belong to the executable, and live as long as it."""
    subject.require_extension("Shardings")
    first = answer_of(subject, _OUTPUTS, executable=executable_of(subject, "add"))
    before = list(first.shardings or ())
    for _ in range(3):
        answer_of(subject, _OUTPUTS, executable=executable_of(subject, "mixed_results"))
    after = list(reread(first).shardings or ())
    subject.expect(after == before, str(before), str(after))


@check("executable_metadata.get", calls=(_METADATA, _DESTROY_METADATA))
def _metadata(subject: Subject) -> None:
    """The metadata of an executable is allocated by the plugin, and given back by its destroy function."""
    subject.require_extension("ExecutableMetadata")
    handle = executable_of(subject, "add")
    for _ in range(3):
        answer = answer_of(subject, _METADATA, executable=handle)
        subject.expect(answer.metadata is not None, "metadata", "null")
        pointer = int.from_bytes(answer.struct_bytes[-8:], "little")
        subject.attempt(_DESTROY_METADATA, metadata=pointer)
