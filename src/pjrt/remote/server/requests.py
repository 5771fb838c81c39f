"""The requests of the IFRT proxy protocol: a table with a handler for each kind.

A handler is a function of a session and a request. It returns the response, or a ``Future`` of it, and raises errors.
It never waits. One that has to wait is declared ``blocking``, and runs in a thread of the server's pool.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pjrt.api.buffer import HostBufferSemantics
from pjrt.api.capability import ATTRIBUTE
from pjrt.api.client import Client
from pjrt.api.compile_options import CompileOptions
from pjrt.api.device import Attributes, Device, MemorySpace
from pjrt.api.errors import InvalidArgumentError, PjrtError, ResourceExhaustedError, UnimplementedError
from pjrt.api.executable import Executable
from pjrt.api.future import Future
from pjrt.api.program import Program, ProgramFormat
from pjrt.api.shape_spec import ShapeSpec, format_shape
from pjrt.ifrt.array import Array, ArrayCopySemantics, ArraySpec
from pjrt.ifrt.hlo_sharding import HloSharding
from pjrt.ifrt.loaded_executable import LoadedExecutable
from pjrt.ifrt.sharding import Sharding
from pjrt.ifrt.transfers import buffer_shapes, parts_of_whole
from pjrt.remote.protocol.messages import KINDS, OWN_KINDS, wire
from pjrt.remote.protocol.programs import callback_signature_of, compile_options_of, execute_options_of, program_of
from pjrt.remote.protocol.values import (
    array_spec_of,
    attributes_proto,
    copy_semantics_of,
    element_type_of,
    element_type_proto,
    error_of,
    layout_of,
    layout_spelling,
    remap_plan_of,
    shape_of,
    shape_proto,
    shard_semantics_of,
    sharding_proto,
    status_proto,
    xla_layout_proto,
)
from pjrt.remote.protocol.versions import BATCHES, INLINE, MOST_INLINE_BYTES, SAVED_EXECUTABLES
from pjrt.remote.security.allowed_options import taken_options
from pjrt.remote.server.executables import Call, HostCallback, SessionExecutable
from pjrt.remote.server.memory import array_in, bytes_of, shortened
from pjrt.stablehlo import vet
from pjrt.stablehlo.encodings.safe_parse import vet_if_delicate
from pjrt.stablehlo.facts.signatures import signature
from pjrt.stablehlo.files.hlo_text import to_hlo_text
from pjrt.stablehlo.reading.conversion import to_text

if TYPE_CHECKING:
    from pjrt.remote.server.session import PassOnCall, Session

Handle = Callable[["Session", Any], Any]
_Predicate = Callable[["Session", Any], bool]
_Declare = Callable[[Handle], Handle]


class Queue(enum.IntEnum):
    """Requests that are handled one after the other; the values are handles that no object has."""

    PROCESSES = -1
    """Programs that span processes: each process waits for the others in them, so all must start them in one order."""
    CALLS = -2
    """Calls of functions. They also wait for the earlier programs that span processes."""

    @property
    def awaited(self) -> tuple[Queue, ...]:
        """The queues whose earlier requests a request of this queue waits for."""
        return (self, Queue.PROCESSES) if self is Queue.CALLS else (self,)


QueueOf = Callable[["Session", Any], "Queue | None"]


class Handler(NamedTuple):
    """The handler of a kind of request.

    Attributes:
        kind: the kind, such as ``copy_arrays``.
        handle: the function.
        inputs: the fields of the request with handles that it uses.
        results: the fields of the request with handles, made by the client, of arrays that it makes. If the request
            fails, they get its error.
        futures: the fields of the request with handles, made by the client, of futures that it makes. If the request
            fails, they get its error.
        host_buffers: returns the handles of host buffers that the request needs.
        blocking: whether the function may wait, and runs in a thread of its own; or a function of the session and the
            request that returns it.
        counted: whether clients count the responses (``seq_num``).
        queue: returns the queue that a request is in, if any: it waits for all earlier ones of its queue.
    """

    kind: str
    handle: Handle
    inputs: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    futures: tuple[str, ...] = ()
    host_buffers: Callable[[Any], Iterable[int]] | None = None
    blocking: bool | _Predicate = False
    counted: bool = True
    queue: QueueOf | None = None

    def handles(self, request: Any) -> list[int]:
        """Return the handles that a request uses and makes."""
        return _handles(request, self.inputs + self.results + self.futures)

    def is_blocking(self, session: Session, request: Any) -> bool:
        """Whether the function may wait for this request, whose inputs are there."""
        if isinstance(self.blocking, bool):
            return self.blocking
        try:
            return self.blocking(session, request)
        except Exception:  # the function raises it too, for the response
            return False

    def queue_of(self, session: Session, request: Any) -> Queue | None:
        """Return the queue that a request is in; ``None`` if it waits for its inputs alone."""
        try:
            return None if self.queue is None else self.queue(session, request)
        except Exception:  # the function raises it too, for the response
            return None

    def result_handles(self, request: Any) -> list[int]:
        """Return the handles of the arrays that a request makes."""
        return _handles(request, self.results)

    def future_handles(self, request: Any) -> list[int]:
        """Return the handles of the futures that a request makes."""
        return _handles(request, self.futures)


HANDLERS: dict[str, Handler] = {}
"""The handler of each kind of request that is offered, by the name of its field in ``IfrtRequest``."""


def handles(
    kind: str,
    *,
    inputs: tuple[str, ...] = (),
    results: tuple[str, ...] = (),
    futures: tuple[str, ...] = (),
    host_buffers: Callable[[Any], Iterable[int]] | None = None,
    blocking: bool | _Predicate = False,
    counted: bool = True,
    queue: QueueOf | None = None,
) -> _Declare:
    """Declare a function the handler of a kind of request; the arguments are those of ``Handler``."""
    assert kind in KINDS or kind in OWN_KINDS, kind

    def declare(function: Handle) -> Handle:
        HANDLERS[f"{kind}_request"] = Handler(
            kind, function, inputs, results, futures, host_buffers, blocking, counted, queue
        )
        return function

    return declare


def _handles(request: Any, fields: tuple[str, ...]) -> list[int]:
    handles = []
    for field in fields:
        value = getattr(request, field)
        if isinstance(value, int):
            if value:
                handles.append(value)
        else:
            handles.extend(value)
    return handles


# Requests about the whole client: its devices and memories, and their defaults.

# Programs may come with shardings of Shardy.
_FOR_JAX: Attributes = {"serialize_with_sdy": True}
# jaxlib's client has no request to save executables, so that JAX must keep none in its compilation cache.
_OF_PROTOCOL: Attributes = {"supports_executable_serialization": False}


@handles("init", counted=False)
def init(session: Session, request: Any) -> Any:
    """Return the devices and memories of the client, and the number of the session."""
    client = session.client
    spaces: dict[int, MemorySpace] = {}
    response = wire.InitResponse(
        session_id=session.id,
        platform_name=session.platform_name,
        platform_version=client.platform_version,
        platform_id=0,
        process_index=client.process_index,
        runtime_type=client.runtime_type,
        client_attributes=attributes_proto(_attributes(client.pjrt_client, session)),
    )
    for device in client.devices:
        spaces |= _add_device(response, device, session.platform_name)
    for space in spaces.values():
        response.memories.add(
            id=space.id,
            memory_space_kind=space.kind,
            kind_id=space.kind_id,
            device_ids=[device.id for device in space.devices],
            debug_string=space.debug_string,
            to_string=str(space),
        )
    return response


@handles("get_default_device_assignment")
def default_device_assignment(session: Session, request: Any) -> Any:
    """Return the devices that a program runs on by default."""
    assignment = session.client.default_device_assignment(request.num_replicas, request.num_partitions)
    return wire.GetDefaultDeviceAssignmentResponse(
        device_assignment=wire.DeviceAssignmentProto(
            replica_count=assignment.num_replicas,
            computation_count=assignment.num_partitions,
            computation_devices=[
                wire.DeviceAssignmentProto_ComputationDevice(replica_device_ids=column)
                for column in zip(*assignment.device_ids, strict=True)
            ],
        )
    )


@handles("get_default_layout")
def default_layout(session: Session, request: Any) -> Any:
    """Return the layout of arrays on a device by default."""
    session.client.lookup_device(request.device_id)
    layout = session.client.pjrt_client.default_layout(element_type_of(request.dtype), tuple(request.dims))
    return wire.GetDefaultLayoutResponse(serialized_pjrt_layout=layout_spelling(layout))


def _attributes(client: Client, session: Session) -> Attributes:
    """Return the attributes of a client, with those that jaxlib's client asks for, and those for clients of this
    package: its declared capabilities, and the protocol's extensions.
    """
    extensions = {SAVED_EXECUTABLES: session.options.save_executables}
    if session.takes_batches:
        extensions |= {BATCHES: True, INLINE: True}
    return {**_FOR_JAX, **client.attributes, **_OF_PROTOCOL, ATTRIBUTE: client.capabilities.to_json(), **extensions}


def _add_device(response: Any, device: Device, platform_name: str) -> dict[int, MemorySpace]:
    message = response.all_devices.add(
        id=device.id,
        local_device_id=device.id,
        local_hardware_id=device.local_hardware_id if device.is_addressable else -1,
        platform_name=platform_name,
        device_kind=device.kind,
        debug_string=device.description.debug_string,
        to_string=str(device),
        attributes=attributes_proto(device.attributes),
    )
    response.primary_device_ids.append(device.id)
    if not device.is_addressable:
        return {}
    response.addressable_device_ids.append(device.id)
    message.default_memory_id = device.default_memory_space.id
    message.memory_ids.extend(space.id for space in device.memory_spaces)
    return {space.id: space for space in device.memory_spaces}


# Requests that make arrays of host buffers, and host buffers of arrays.

# The bytes of a host buffer are the session's alone, and nobody writes them again, so devices that can use them in
# place do. They may not write to them, because several devices may have the same bytes.
_SEMANTICS = HostBufferSemantics.IMMUTABLE_ZERO_COPY


@handles(
    "make_array_from_host_buffer",
    results=("array_handle",),
    host_buffers=lambda request: () if request.HasField("inline") else (request.host_buffer_handle,),
)
def make_array_from_host_buffer(session: Session, request: Any) -> Any:
    """Put a whole array on devices."""
    data = request.inline if request.HasField("inline") else session.host_buffers.take(request.host_buffer_handle)
    element_type, shape = element_type_of(request.dtype), shape_of(request.shape)
    value = array_in(data, element_type, shape, _strides(request))
    sharding = session.sharding(request.sharding)
    if request.HasField("layout"):
        spec = ArraySpec(shape, element_type, sharding, layout_of(request.layout))
        parts = parts_of_whole(spec, value)
        array = session.client.make_array_from_host_buffer_shards(spec, parts, semantics=_SEMANTICS)
    else:
        array = session.client.make_array(value, sharding, semantics=_SEMANTICS)
    return wire.MakeArrayFromHostBufferResponse(array_handle=session.arrays.add(array, request.array_handle))


def _shards_handles(request: Any) -> Iterator[int]:
    return (buffer.host_buffer_handle for spec in request.specs for buffer in spec.host_buffers)


@handles("make_arrays_from_host_buffer_shards", results=("array_handles",), host_buffers=_shards_handles)
def make_arrays_from_host_buffer_shards(session: Session, request: Any) -> Any:
    """Put arrays on devices, each shard from a host buffer; devices with equal shards share a buffer."""
    buffers = {handle: session.host_buffers.take(handle) for handle in _shards_handles(request)}
    arrays = []
    for message in request.specs:
        spec = array_spec_of(session.client, message.array_spec)
        arrays.append(
            session.client.make_array_from_host_buffer_shards(
                spec, _shards(spec, message, buffers), semantics=_SEMANTICS
            )
        )
    handles = session.arrays.add_all(arrays, request.array_handles)
    return wire.MakeArraysFromHostBufferShardsResponse(array_handles=handles)


def _shards(spec: ArraySpec, message: Any, buffers: dict[int, Any]) -> list[Any]:
    shards: list[Any] = [None] * len(spec.sharding.devices.addressable_devices)
    if len(message.addressable_shard_indices) != len(message.host_buffers):
        raise InvalidArgumentError(
            f"expected the indices of the shards of each of {len(message.host_buffers)} host buffers, found "
            f"{len(message.addressable_shard_indices)}"
        )
    for row, buffer in zip(message.addressable_shard_indices, message.host_buffers, strict=True):
        data = buffers[buffer.host_buffer_handle]
        value = array_in(data, element_type_of(buffer.dtype), shape_of(buffer.shape), _strides(buffer))
        for index in row.indices:
            if not 0 <= index < len(shards):
                raise InvalidArgumentError(
                    f"expected the index of one of {len(shards)} shards of {spec}, found {index}"
                )
            shards[index] = value
    if missing := [index for index, shard in enumerate(shards) if shard is None]:
        raise InvalidArgumentError(f"expected a host buffer for each shard of {spec}, found none for {missing}")
    return shards


@handles("make_error_arrays", results=("array_handles",))
def make_error_arrays(session: Session, request: Any) -> Any:
    """Make arrays that have failed already."""
    error = error_of(request.error)
    if error is None:
        raise InvalidArgumentError("expected the status of an error for error arrays, found OK")
    error = shortened(error)
    specs = [array_spec_of(session.client, spec) for spec in request.array_specs]
    arrays = session.client.make_error_arrays(error, specs)
    handles = session.arrays.add_all(arrays, request.array_handles)
    try:
        for handle in handles:
            session.array_memory.hold_text(handle, error)
    except ResourceExhaustedError:
        for handle in handles:
            session.arrays.forget(handle)
        raise
    return wire.MakeErrorArraysResponse(array_handles=handles)


@handles("copy_to_host_buffer", inputs=("array_handle",))
def copy_to_host_buffer(session: Session, request: Any) -> Any:
    """Copy a whole array to a host buffer, which the client fetches; a small one goes with the response."""
    strides, handle, host_buffers = _strides(request), request.host_buffer_handle, session.host_buffers
    most_inline = min(request.most_inline, MOST_INLINE_BYTES)

    def keep(value: np.ndarray[Any, Any]) -> Any:
        data = bytes_of(value, strides)
        if most_inline and data.nbytes <= most_inline:
            return wire.CopyToHostBufferResponse(inline=data.tobytes())
        host_buffers.store(handle, data)
        return wire.CopyToHostBufferResponse()

    return session.arrays.get(request.array_handle).to_host().then(keep)


def _strides(message: Any) -> tuple[int, ...] | None:
    return tuple(message.byte_strides.strides) if message.HasField("byte_strides") else None


# Requests that make arrays of arrays.


def _makes_uneven(session: Session, request: Any) -> bool:
    return _is_uneven(session.sharding(request.sharding), shape_of(request.shape))


@handles(
    "assemble_array_from_single_device_arrays",
    inputs=("single_device_array_handles",),
    results=("result_handle",),
    blocking=_makes_uneven,
)
def assemble(session: Session, request: Any) -> Any:
    """Make one array of the arrays of single devices."""
    array = session.client.assemble_array_from_single_device_arrays(
        shape_of(request.shape),
        session.sharding(request.sharding),
        session.arrays.get_all(request.single_device_array_handles),
        copy_semantics_of(request.copy_semantics),
        element_type=element_type_of(request.dtype) if request.HasField("dtype") else None,
        shard_semantics=shard_semantics_of(request.single_device_shard_semantics),
    )
    handle = session.arrays.add(array, request.result_handle)
    return wire.AssembleArrayFromSingleDeviceArraysResponse(array_handle=handle)


def _cuts_uneven(session: Session, request: Any) -> bool:
    spec = session.arrays.get(request.array_handle).spec
    return _is_uneven(spec.sharding, spec.shape)


@handles(
    "disassemble_into_single_device_arrays",
    inputs=("array_handle",),
    results=("result_handles",),
    blocking=_cuts_uneven,
)
def disassemble(session: Session, request: Any) -> Any:
    """Make an array of each shard of an array."""
    arrays = session.arrays.get(request.array_handle).disassemble(
        copy_semantics_of(request.copy_semantics), shard_semantics_of(request.single_device_shard_semantics)
    )
    handles = session.arrays.add_all(arrays, request.result_handles)
    return wire.DisassembleIntoSingleDeviceArraysResponse(array_handles=handles)


@handles("copy_arrays", inputs=("array_handles",), results=("result_handles",))
def copy_arrays(session: Session, request: Any) -> Any:
    """Copy arrays to other devices, or to another kind of memory."""
    arrays = session.client.copy_arrays(
        session.arrays.get_all(request.array_handles),
        [session.client.lookup_device(number) for number in request.device_ids] or None,
        request.memory_kind or None,
        copy_semantics_of(request.copy_semantics),
    )
    return wire.CopyArraysResponse(array_handles=session.arrays.add_all(arrays, request.result_handles))


@handles("fully_replicated_shard", inputs=("array_handle",), results=("result_handle",))
def fully_replicated_shard(session: Session, request: Any) -> Any:
    """Make an array of one device of an array that each device has whole."""
    array = session.arrays.get(request.array_handle)
    shard = array.fully_replicated_shard(copy_semantics_of(request.copy_semantics))
    return wire.FullyReplicatedShardResponse(array_handle=session.arrays.add(shard, request.result_handle))


@handles("reshard_arrays", inputs=("array_handles",), results=("result_handles",), blocking=True)
def reshard_arrays(session: Session, request: Any) -> Any:
    """Make arrays of other shardings of arrays."""
    arrays = session.arrays.get_all(request.array_handles)
    specs = [array_spec_of(session.client, spec) for spec in request.array_specs]
    semantics = copy_semantics_of(request.copy_semantics)
    outputs = session.client.reshard_arrays(arrays, [spec.sharding for spec in specs], semantics)
    return wire.ReshardArraysResponse(array_handles=session.arrays.add_all(outputs, request.result_handles))


@handles("remap_arrays", inputs=("array_handles",), results=("result_handles",))
def remap_arrays(session: Session, request: Any) -> Any:
    """Make arrays of the shards of others."""
    plan = remap_plan_of(session.client, request.plan)
    arrays = session.arrays.get_all(request.array_handles)
    # A client may give an array's shards another meaning here, so only shapes, types and places are compared.
    if list(map(_place, plan.input_specs)) != [_place(array.spec) for array in arrays]:
        raise InvalidArgumentError(
            f"expected the arrays {[str(spec) for spec in plan.input_specs]}, found {[str(a.spec) for a in arrays]}"
        )
    plan = replace(plan, input_specs=tuple(array.spec for array in arrays))
    outputs = session.client.remap_arrays(plan, arrays, copy_semantics_of(request.copy_semantics))
    return wire.RemapArraysResponse(array_handles=session.arrays.add_all(outputs, request.result_handles))


def _place(spec: ArraySpec) -> tuple[Any, ...]:
    return spec.shape, spec.element_type, spec.sharding.devices, spec.sharding.memory_kind


@handles("bitcast_arrays", inputs=("array_handles",), results=("result_handles",))
def bitcast_arrays(session: Session, request: Any) -> Any:
    """Make arrays that read the same bytes as another type and shape; the inputs are used up."""
    if copy_semantics_of(request.copy_semantics) is not ArrayCopySemantics.DONATE_INPUT:
        raise UnimplementedError("expected the copy semantics DONATE_INPUT for a bitcast: its inputs lose their memory")
    arrays = session.arrays.get_all(request.array_handles)
    outputs = []
    for array, proto in zip(arrays, request.array_specs, strict=True):
        spec = array_spec_of(session.client, proto)
        buffers = [
            buffer.bitcast(spec.element_type, shape)
            for buffer, shape in zip(array.buffers, buffer_shapes(spec), strict=True)
        ]
        outputs.append(Array(session.client, spec, buffers))
    return wire.BitcastArraysResponse(array_handles=session.arrays.add_all(outputs, request.result_handles))


def _is_uneven(sharding: Sharding, shape: tuple[int, ...]) -> bool:
    """Whether some tiles are short: their shards are padded, and cut to size by the host, which waits for values."""
    return isinstance(sharding, HloSharding) and any(
        size % count for size, count in zip(shape, sharding.tiling.tiles, strict=False)
    )


# Requests about whether arrays are ready or deleted, and about futures.


@handles("check_value_ready", inputs=("value_handles",))
def check_value_ready(session: Session, request: Any) -> Any:
    """Return the response when all arrays have their values, or the error of one that has none."""
    arrays = session.arrays.get_all(request.value_handles)
    ready = session.client.get_ready_future(arrays)
    if ready.done():  # small programs often have ended before the client asks
        ready.result()
        return wire.CheckValueReadyResponse()
    return ready.then(lambda _: wire.CheckValueReadyResponse())


@handles("check_future", inputs=("future_handle",))
def check_future(session: Session, request: Any) -> Any:
    """Return the response when a future is done; it can be asked for once."""
    handle = request.future_handle
    futures = session.deletions if handle in session.deletions else session.futures
    return futures.pop(handle).then(lambda _: wire.CheckFutureResponse())


@handles("delete_array", inputs=("array_handle",), counted=False)
def delete_array(session: Session, request: Any) -> Any:
    """Delete arrays, and return the handle of a future that is done when they are deleted."""
    failures: list[Future[None]] = []
    for handle in request.array_handle:
        try:
            session.arrays.get(handle).delete()
        except PjrtError as error:
            failures.append(Future.failed(error))
    return wire.DeleteArrayResponse(deletion_future_handle=session.deletions.add(Future.all(failures)))


@handles("is_array_deleted", inputs=("array_handle",))
def is_array_deleted(session: Session, request: Any) -> Any:
    """Return whether an array was deleted or donated."""
    return wire.IsArrayDeletedResponse(deleted=session.arrays.get(request.array_handle).is_deleted)


@handles("destruct_array", inputs=("array_handle",), counted=False)
def destruct_array(session: Session, request: Any) -> Any:
    """Forget arrays that the client has forgotten. Arrays that share their memory keep it."""
    unknown = None
    for handle in request.array_handle:
        try:
            session.arrays.forget(handle)
        except PjrtError as error:
            unknown = unknown or error
    if unknown is not None:
        raise unknown
    return wire.DestructArrayResponse()


# Requests that call a function of the server's owner: the workers of a cluster run functions of their controller.


@handles(
    "call_function",
    inputs=("array_handles",),
    results=("result_array_handles",),
    blocking=lambda session, request: session.options.pass_on_call is None,
    queue=lambda session, request: Queue.CALLS,
)
def call_function(session: Session, request: Any) -> Any:
    """Call a function with the values of arrays, and make arrays of its results; return the rest as bytes."""
    if session.options.pass_on_call is not None:
        return _passed_on(session, request, session.options.pass_on_call)
    call = session.options.call_function
    if call is None:
        raise UnimplementedError("this server calls no functions of its clients; only the workers of a cluster do")
    specs = [array_spec_of(session.client, spec) for spec in request.result_specs]
    values = [array.to_host() for array in session.arrays.get_all(request.array_handles)]
    result, arrays = call(request.function, [value.result() for value in values])
    if len(arrays) != len(specs):
        raise InvalidArgumentError(f"expected {len(specs)} arrays of the function, found {len(arrays)}")
    outputs = []
    for array, spec in zip(arrays, specs, strict=True):
        value = np.asarray(array)
        if value.shape != spec.shape or value.dtype != spec.element_type.dtype:
            raise InvalidArgumentError(
                f"expected {format_shape(spec.element_type, spec.shape)} of the function, found an array of "
                f"{value.dtype}{list(value.shape)}"
            )
        outputs.append(session.client.make_array(value, spec.sharding))
    session.arrays.add_all(outputs, request.result_array_handles)
    return wire.CallFunctionResponse(result=result)


def _passed_on(session: Session, request: Any, pass_on: PassOnCall) -> Future[Any]:
    """Have another server call the function: the values of the arrays do not come here."""
    specs = [array_spec_of(session.client, spec) for spec in request.result_specs]
    arguments = [array.shards[0].buffer for array in session.arrays.get_all(request.array_handles)]
    results = [(ShapeSpec(spec.shape, spec.element_type), spec.sharding.devices[0]) for spec in specs]
    answer, buffers = pass_on(request.worker, request.function, arguments, results)
    arrays = [Array(session.client, spec, [buffer]) for spec, buffer in zip(specs, buffers, strict=True)]
    session.arrays.add_all(arrays, request.result_array_handles)
    return answer.then(lambda result: wire.CallFunctionResponse(result=result))


# Requests that compile programs, save and load executables, and forget them.


@handles("compile", blocking=True)
def compile_program(session: Session, request: Any) -> Any:
    """Compile a program, and return the handle of its executable."""
    callbacks = [HostCallback(callback_signature_of(serialized)) for serialized in request.host_callbacks]
    with session.as_stranger():
        executable = session.client.compile(*received(session, request))
    return compiled(session, executable, callbacks, size=request.program.ByteSize())


def received(session: Session, request: Any) -> tuple[Program, CompileOptions]:
    """Return the program and the compile options of a request, after the checks that the server makes.

    Raises:
        PermissionDeniedError: clients may not set one of the options.
        PjrtError: the program does not pass; see ``pjrt.stablehlo.vet``.
    """
    program, options = program_of(request.program), compile_options_of(request.compile_options)
    if session.options.allow_options is not None:
        options = taken_options(options, session.options.allow_options)
    if session.options.vet_programs:
        vet(program)
    elif session.options.allow_options is not None:  # a stranger's
        vet_if_delicate(program)
    return program, options


def compiled(
    session: Session, executable: LoadedExecutable, callbacks: Sequence[HostCallback] = (), *, size: int
) -> Any:
    """Keep an executable for the client, and return its handle and the first facts about it (``CompileResponse``).

    Args:
        session: the session of the client.
        executable: the executable.
        callbacks: the functions of the client that the program calls.
        size: the bytes of the program that the client sent, which count as memory of the session.

    Raises:
        UnimplementedError: the shape of a result is known only after a run. Clients learn shapes before.
    """
    if None in executable.output_specs:
        executable.delete()
        raise UnimplementedError(
            f"a server does not run {executable.name!r}: the shape of a result is known only after a run; give the "
            "shapes of the arguments, as in compile(program, shapes=…)"
        )
    response = wire.CompileResponse(
        loaded_executable_handle=session.executables.add(SessionExecutable(executable, callbacks, size=size)),
        loaded_host_callback_handles=[session.callbacks.add(callback) for callback in callbacks],
        name=executable.name,
        num_devices=executable.num_devices,
        device_ids=executable.devices.ids,
        addressable_device_ids=[device.id for device in executable.addressable_devices],
        ready_future_handle=session.futures.add(Future.completed(None)),
    )
    try:
        if fingerprint := executable.fingerprint():
            response.fingerprint_value = fingerprint
    except UnimplementedError:  # without a fingerprint, as here, JAX goes on; with an error it does not
        pass
    except PjrtError as error:
        response.fingerprint_error.CopyFrom(status_proto(error))
    return response


@handles("loaded_executable_delete", inputs=("loaded_executable_handle",))
def delete(session: Session, request: Any) -> Any:
    """Unload an executable, and return the handle of a future that is done when it is unloaded."""
    session.executables.get(request.loaded_executable_handle).delete()
    return wire.LoadedExecutableDeleteResponse(future_handle=session.futures.add(Future.completed(None)))


@handles("loaded_executable_is_deleted", inputs=("loaded_executable_handle",))
def is_deleted(session: Session, request: Any) -> Any:
    """Return whether an executable was deleted."""
    executable = session.executables.get(request.loaded_executable_handle).executable
    return wire.LoadedExecutableIsDeletedResponse(is_deleted=executable.is_deleted)


@handles("loaded_executable_destruct", inputs=("loaded_executable_handle",))
def destruct(session: Session, request: Any) -> Any:
    """Forget an executable that the client has forgotten; executions under way end first."""
    session.executables.pop(request.loaded_executable_handle).release()
    return wire.LoadedExecutableDestructResponse()


@handles("serialize_executable", blocking=True)
def serialize(session: Session, request: Any) -> Any:
    """Return an executable as the device's bytes."""
    _check(session)
    executable = session.executables.get(request.loaded_executable_handle).executable
    return wire.SerializeExecutableResponse(serialized_executable=executable.serialize())


@handles("load_executable", blocking=True)
def load(session: Session, request: Any) -> Any:
    """Load an executable from the device's bytes, and return what a compilation of its program returns."""
    _check(session)
    with session.as_stranger():
        program, options = received(session, request)
        executable = session.client.pjrt_client.deserialize(request.serialized_executable, options)
    types = signature(program, trusted=True)
    loaded = session.client.on_global_arrays(executable, types)
    return wire.LoadExecutableResponse(compiled=compiled(session, loaded, size=request.ByteSize()))


def _check(session: Session) -> None:
    if not session.options.save_executables:
        raise UnimplementedError(
            "this server neither saves executables nor loads saved ones, which hold machine code; keep the program and "
            "compile it again, or start the server with --save-executables if you trust its clients"
        )


# Requests about executables: their types, their cost, their text.


@handles("loaded_executable_metadata")
def metadata(session: Session, request: Any) -> Any:
    """Return the shardings, layouts, memory kinds, donated parameters and memory of an executable.

    A fact that the device does not report has its error in the response.
    """
    executable = session.executables.get(request.loaded_executable_handle).executable
    program = executable.pjrt_executable
    response = wire.LoadedExecutableMetadataResponse()
    for name in ("parameter_shardings", "output_shardings"):
        shardings = _shardings(program, name)
        if shardings is not None:
            getattr(response, name).shardings.extend(shardings)
    for name in ("parameter_layouts", "output_layouts"):
        try:
            layouts = [xla_layout_proto(layout) for layout in getattr(program, name)]
            getattr(response, f"{name}_list").layouts.extend(layouts)
        except PjrtError as error:
            getattr(response, f"{name}_error").CopyFrom(status_proto(error))
    kinds = [
        spec.sharding.memory_spaces[0].kind for spec in filter(None, executable.output_specs)
    ]  # no None is compiled
    response.output_memory_kinds.memory_kind_lists.add(memory_kinds=kinds)
    response.donated_input_indices.donated_input_indices.extend(sorted(executable.donatable_input_indices))
    try:
        stats = program.memory_stats()
        response.compiled_memory_stats.CopyFrom(wire.CompiledMemoryStatsProto(**stats._asdict()))
    except PjrtError as error:
        response.compiled_memory_stats_error.CopyFrom(status_proto(error))
    try:
        response.size_of_generated_code_in_bytes = program.size_of_generated_code
    except UnimplementedError:
        response.size_of_generated_code_in_bytes = 0
    return response


def _shardings(program: Executable, name: str) -> Sequence[bytes] | None:
    try:
        shardings: Sequence[bytes] | None = getattr(program, name)
    except UnimplementedError:
        return None
    return shardings


# jaxlib's client looks for an error of the next two inside of the response, and fails where it has no response.


@handles("loaded_executable_cost_analysis")
def cost_analysis(session: Session, request: Any) -> Any:
    """Return the cost of one run."""

    def costs() -> Any:
        executable = session.executables.get(request.loaded_executable_handle).executable
        numbers = {name: float(value) for name, value in executable.cost_analysis().items()}
        return wire.LoadedExecutableCostAnalysisResponse(attributes=attributes_proto(numbers))

    return _or_status(costs, wire.LoadedExecutableCostAnalysisResponse)


@handles("loaded_executable_human_readable_program_text")
def program_text(session: Session, request: Any) -> Any:
    """Return the program after the compiler's optimizations as text."""

    def text() -> Any:
        executable = session.executables.get(request.loaded_executable_handle).executable
        program = executable.pjrt_executable.optimized_program()
        spelling = to_text(program, trusted=True) if program.format == ProgramFormat.MLIR else to_hlo_text(program)
        return wire.LoadedExecutableHumanReadableProgramTextResponse(human_readable_program_text=spelling)

    return _or_status(text, wire.LoadedExecutableHumanReadableProgramTextResponse)


@handles("optimized_program")
def optimized_program(session: Session, request: Any) -> Any:
    """Return the program after the compiler's optimizations; one in MLIR as text, which clients of any jaxlib read."""
    executable = session.executables.get(request.loaded_executable_handle).executable
    program = executable.pjrt_executable.optimized_program()
    code = to_text(program, trusted=True).encode() if program.format == ProgramFormat.MLIR else program.code
    return wire.OptimizedProgramResponse(format=program.format, code=code)


def _or_status(respond: Callable[[], Any], response: Any) -> Any:
    """Return the response, or one with the status of the error."""
    try:
        return respond()
    except PjrtError as error:
        return response(status=status_proto(error))


# Requests that run executables.


def _queue(session: Session, request: Any) -> Queue | None:
    executable = session.executables.get(request.loaded_executable_handle).executable
    return None if executable.devices.is_fully_addressable else Queue.PROCESSES


@handles(
    "loaded_executable_execute",
    inputs=("loaded_executable_handle", "args_handles"),
    results=("result_array_handle",),
    futures=("result_status_handle",),
    queue=_queue,
)
def execute(session: Session, request: Any) -> Any:
    """Run an executable on arrays.

    From its second execution on, the client makes the handles of the results and waits for no response.
    """
    entry = session.executables.get(request.loaded_executable_handle)
    executable = entry.executable
    if request.device_ids and tuple(request.device_ids) != executable.devices.ids:
        raise InvalidArgumentError(
            f"{executable.name!r} is loaded on the devices {executable.devices.ids}; expected to run on these, found "
            f"{tuple(request.device_ids)}"
        )
    specs = filter(None, executable.output_specs)  # no None is compiled
    outputs = [] if request.result_array_handle else list(map(_output, specs))
    arguments = session.arrays.get_all(request.args_handles)
    options = execute_options_of(request.execute_options)
    status = None
    with session.as_stranger():
        if request.execute_options.fill_status:
            arrays, status = entry.execute(arguments, options)
        else:
            arrays = entry.launch(arguments, options)
    session.backlog.add(arrays)
    handles = session.arrays.add_all(arrays, request.result_array_handle)
    for output, handle in zip(outputs, handles, strict=False):
        output.array_handle = handle
    response = wire.LoadedExecutableExecuteResponse(outputs=outputs)
    # jaxlib's client ends its process if it finds the handle of a status that it did not ask for.
    if status is not None:
        response.status_handle = session.futures.add(status, request.result_status_handle)
    return response


def _output(spec: ArraySpec) -> Any:
    """Return the facts about a result that the client keeps for its arrays of later executions."""
    return wire.LoadedExecutableExecuteResponse_Output(
        dtype=element_type_proto(spec.element_type),
        shape=shape_proto(spec.shape),
        sharding=sharding_proto(spec.sharding),
    )


@handles("loaded_executable_fetch_execute_result", inputs=("result_status_handle",))
def fetch_execute_result(session: Session, request: Any) -> Any:
    """Return the response when an execution has ended; it can be asked for once."""
    status = session.futures.pop(request.result_status_handle)
    return status.then(lambda _: wire.LoadedExecutableFetchExecuteResultResponse())


# Requests by which a client runs its functions that programs call.


@handles("loaded_host_callback_poll")
def poll(session: Session, request: Any) -> Any:
    """Return the response when a program calls the function: the operands are then in a host buffer.

    A response without a call ends the client's polls. An error would not: the client polls again at once.
    """
    handle = request.loaded_host_callback_handle
    if handle not in session.callbacks:
        return wire.LoadedHostCallbackPollResponse()

    def hand_over(call: Call | None) -> Any:
        if call is None:
            if handle in session.callbacks:
                session.callbacks.forget(handle)
            return wire.LoadedHostCallbackPollResponse()
        session.host_buffers.store(request.operand_host_buffer_handle, call.operands)
        return wire.LoadedHostCallbackPollResponse(host_callback_execution_handle=session.calls.add(call))

    future: Future[Call | None] = session.callbacks.get(handle).poll()
    return future.then(hand_over)


@handles(
    "loaded_host_callback_return",
    host_buffers=lambda request: (
        (request.result_host_buffer_handle,) if request.HasField("result_host_buffer_handle") else ()
    ),
)
def return_results(session: Session, request: Any) -> Any:
    """Give a running program the results of a call, or its error."""
    call = session.calls.pop(request.host_callback_execution_handle)
    error = error_of(request.error)
    if error is None:
        call.results.set_result(bytes(session.host_buffers.take(request.result_host_buffer_handle)))
    else:
        call.results.set_error(shortened(error))
    return wire.LoadedHostCallbackReturnResponse()
