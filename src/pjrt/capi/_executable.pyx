"""Executables: compiled programs, loaded on no devices or on some; their execution, and its options.

The execution is the hot path of this package.
"""

import functools
import logging

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from pjrt.capi._api cimport address as checked
from pjrt.capi._api cimport (
    Block, blob, count, deleter_t, element_type, encoded, function_t, gate_enter, gate_leave, int64_block, read_int64s,
    read_shape, start, text, whole
)
from pjrt.capi._buffer cimport BufferCore, new_buffer
from pjrt.capi._device cimport native_device, output_layouts, parameter_layouts
from pjrt.abi.generated.declarations cimport *
from pjrt.capi._scope cimport (
    ClientScope, ClosableHandle, Constant, Getter, Handle, HostMemory, Pin, Scope, eager_future, lazy_future
)

import numpy as np

from pjrt.api.buffer import CopyToDeviceStream
from pjrt.api.checks import expect, expect_sequence, unexpected
from pjrt.api.compile_options import CompileOptions, DeviceAssignment
from pjrt.api.errors import (
    FailedPreconditionError, InternalError, InvalidArgumentError, PjrtError, UnimplementedError, from_author
)
from pjrt.api.executable import CompiledMemoryStats, Executable
from pjrt.api.loaded_executable import ExecuteContext, ExecuteOptions, LoadedExecutable
from pjrt.api.program import Program
from pjrt.capi._program import parameters_of
from pjrt.capi._scope import documented

cdef size_t _LARGEST_PROGRAM = <size_t>1 << 36
cdef Getter _COST_ANALYSIS = Getter("PJRT_Executable_GetCostAnalysis")  # Executable.cost_analysis
cdef Getter _SERIALIZED = Getter("PJRT_Executable_Serialize")  # Executable.serialize
cdef Getter _FINGERPRINT = Getter("PJRT_Executable_Fingerprint", binary=True)  # Executable.fingerprint
cdef Getter _COMPILE_OPTIONS = Getter("PJRT_Executable_GetCompileOptions")  # Executable.compile_options


@cython.no_gc_clear
cdef class ExecutableCore(Handle):
    """A ``PJRT_Executable``."""

    @property
    def output_shapes(self):
        cdef PJRT_Executable_OutputDimensions_Args args
        cdef size_t index, position = 0
        start(&args, PJRT_Executable_OutputDimensions_Args_STRUCT_SIZE)
        args.executable = <PJRT_Executable *>self.use()
        self.call(SLOT_PJRT_Executable_OutputDimensions, &args)
        shapes = []
        for index in range(count(args.num_outputs, args.dim_sizes, "the shapes of the results")):
            shapes.append(read_shape(args.dims + position, args.dim_sizes[index], "the shape of a result"))
            position += args.dim_sizes[index]
        return tuple(shapes)

    @property
    def output_memory_kinds(self):
        cdef PJRT_Executable_OutputMemoryKinds_Args args
        start(&args, PJRT_Executable_OutputMemoryKinds_Args_STRUCT_SIZE)
        args.executable = <PJRT_Executable *>self.use()
        self.call(SLOT_PJRT_Executable_OutputMemoryKinds, &args)
        return _texts(args.memory_kinds, args.memory_kind_sizes, args.num_outputs, "the memories of the results")

    @property
    def parameter_memory_kinds(self):
        cdef PJRT_Executable_ParameterMemoryKinds_Args args
        start(&args, PJRT_Executable_ParameterMemoryKinds_Args_STRUCT_SIZE)
        args.executable = <PJRT_Executable *>self.use()
        self.call(SLOT_PJRT_Executable_ParameterMemoryKinds, &args)
        return _texts(args.memory_kinds, args.memory_kind_sizes, args.num_parameters, "the memories of the parameters")

    @property
    def output_layouts(self):
        return output_layouts(self)

    @property
    def parameter_layouts(self):
        return parameter_layouts(self)

    @property
    def output_shardings(self):
        cdef PJRT_Shardings_PJRT_Executable_OutputShardings_Args args
        start(&args, PJRT_Shardings_PJRT_Executable_OutputShardings_Args_STRUCT_SIZE)
        args.executable = <PJRT_Executable *>self.use()
        self.call(SLOT_PJRT_Shardings_PJRT_Executable_OutputShardings, &args)
        shardings = _blobs(args.shardings, args.sharding_sizes, args.num_outputs, "the shardings of the results")
        # XLA reports the sharding of the empty tuple for a program without results.
        return [] if shardings is not None and len(shardings) == 1 and self.num_outputs == 0 else shardings

    @property
    def parameter_shardings(self):
        cdef PJRT_Shardings_PJRT_Executable_ParameterShardings_Args args
        start(&args, PJRT_Shardings_PJRT_Executable_ParameterShardings_Args_STRUCT_SIZE)
        args.executable = <PJRT_Executable *>self.use()
        self.call(SLOT_PJRT_Shardings_PJRT_Executable_ParameterShardings, &args)
        return _blobs(args.shardings, args.sharding_sizes, args.num_parameters, "the shardings of the parameters")

    def cost_analysis(self):
        return _COST_ANALYSIS.ask(self)

    def memory_stats(self):
        cdef PJRT_Executable_GetCompiledMemoryStats_Args a
        start(&a, PJRT_Executable_GetCompiledMemoryStats_Args_STRUCT_SIZE)
        a.executable = <PJRT_Executable *>self.use()
        self.call(SLOT_PJRT_Executable_GetCompiledMemoryStats, &a)
        return CompiledMemoryStats(
            generated_code_size_in_bytes=a.generated_code_size_in_bytes,
            argument_size_in_bytes=a.argument_size_in_bytes,
            output_size_in_bytes=a.output_size_in_bytes,
            alias_size_in_bytes=a.alias_size_in_bytes,
            temp_size_in_bytes=a.temp_size_in_bytes,
            host_generated_code_size_in_bytes=a.host_generated_code_size_in_bytes,
            host_argument_size_in_bytes=a.host_argument_size_in_bytes,
            host_output_size_in_bytes=a.host_output_size_in_bytes,
            host_alias_size_in_bytes=a.host_alias_size_in_bytes,
            host_temp_size_in_bytes=a.host_temp_size_in_bytes,
            peak_memory_in_bytes=a.peak_memory_in_bytes,
            total_size_in_bytes=a.total_size_in_bytes,
            total_allocation_bytes=a.total_allocation_bytes,
            indefinite_allocations=a.indefinite_allocations,
            peak_unpadded_heap_bytes=a.peak_unpadded_heap_bytes,
        )

    def optimized_program(self):
        cdef PJRT_Executable_OptimizedProgram_Args args
        cdef PJRT_Program program
        cdef Block code
        start(&args, PJRT_Executable_OptimizedProgram_Args_STRUCT_SIZE)
        start(&program, PJRT_Program_STRUCT_SIZE)
        args.executable = <PJRT_Executable *>self.use()
        args.program = &program
        # Asked twice: without memory for the code the plugin gives its size, then it fills the memory.
        self.call(SLOT_PJRT_Executable_OptimizedProgram, &args)
        if program.code_size > _LARGEST_PROGRAM:
            raise InternalError(
                f"the plugin gave an optimized program of {program.code_size} bytes, which cannot be right"
            )
        code = Block.of(program.code_size)
        program.code = <char *>code.data
        self.call(SLOT_PJRT_Executable_OptimizedProgram, &args)
        return Program(
            blob(program.code, program.code_size, "the optimized program"),
            text(program.format, program.format_size, "a program's format"),
        )

    def serialize(self):
        return _SERIALIZED.ask(self)

    def fingerprint(self):
        return _FINGERPRINT.ask(self)

    def compile_options(self):
        return CompileOptions.from_proto(_COMPILE_OPTIONS.ask(self))

    def abi_version(self):
        from pjrt.capi._extensions import executable_version

        return executable_version(self)

    def tpu(self):
        from pjrt.capi._extensions import tpu_executable

        return tpu_executable(self.scope, self.serialize())

    def metadata(self):
        cdef PJRT_ExecutableMetadata_GetExecutableMetadata_Args args
        cdef PJRT_ExecutableMetadata_DestroySerializedMetadata_Args destroy
        cdef function_t free = self.scope.api.find_in_extension(
            SLOT_PJRT_ExecutableMetadata_DestroySerializedMetadata
        )
        args.executable = <PJRT_Executable *>self.use()
        args.metadata = NULL
        self.call(SLOT_PJRT_ExecutableMetadata_GetExecutableMetadata, &args)
        if args.metadata == NULL:
            return b""
        try:
            return blob(
                args.metadata.serialized_metadata,
                args.metadata.serialized_metadata_size,
                "the metadata of an executable",
            )
        finally:
            destroy.metadata = args.metadata
            if free != NULL:
                with nogil:
                    (<deleter_t>free)(&destroy)

    def __repr__(self):
        if self.native == NULL or self.scope.is_shut():
            return f"<{type(self).__name__} of a closed client>"
        return Executable.__repr__(self)


@documented
class PluginExecutable(ExecutableCore, Executable):
    """A compiled program of a plugin, loaded nowhere (``PJRT_Executable``)."""

    name = Constant("PJRT_Executable_Name")
    num_replicas = Getter("PJRT_Executable_NumReplicas")
    num_partitions = Getter("PJRT_Executable_NumPartitions")
    num_outputs = Constant("PJRT_Executable_NumOutputs")
    size_of_generated_code = Getter("PJRT_Executable_SizeOfGeneratedCodeInBytes")
    output_element_types = Getter("PJRT_Executable_OutputElementTypes")

    @functools.cached_property
    def _parameters(self):
        return parameters_of(self)

    @property
    def parameter_specs(self):
        return tuple([parameter.spec for parameter in self._parameters])

    @property
    def parameter_names(self):
        return tuple([parameter.name for parameter in self._parameters])


cdef object new_executable(Scope scope, str platform, PJRT_Executable *native):
    """Return an executable that the plugin made, and take it over."""
    if native == NULL:
        raise InternalError("the plugin gave no executable where one was expected; report it to its vendor")
    executable = PluginExecutable()
    (<ExecutableCore>executable).platform_name = platform
    (<ExecutableCore>executable).open(scope, native, SLOT_PJRT_Executable_Destroy)  # Executable: when it is dropped
    return executable


cdef tuple _texts(const char *const *array, const size_t *sizes, size_t number, str what):
    cdef size_t index
    count(number, sizes, what)
    return tuple([text(array[index], sizes[index], what) for index in range(count(number, array, what))])


cdef object _blobs(const char *const *array, const size_t *sizes, size_t number, str what):
    """Return serialized protos; ``None`` where the plugin has none."""
    cdef size_t index
    if array == NULL:
        return None
    count(number, sizes, what)
    return tuple([blob(array[index], sizes[index], what) for index in range(count(number, array, what))])


# Loaded executables, and their execution.

cdef class ExecuteCall

cdef enum:
    FEW = 32  # pointers that fit the stack; more are allocated
    MOST_RESULTS = 1 << 24

cdef Getter _DEVICES = Getter("PJRT_LoadedExecutable_AddressableDevices")  # LoadedExecutable.addressable_devices
cdef Getter _ASSIGNMENT = Getter("PJRT_LoadedExecutable_GetDeviceAssignment")  # LoadedExecutable.device_assignment
cdef Getter _LOADED_FINGERPRINT = Getter("PJRT_LoadedExecutable_Fingerprint", binary=True)  # LoadedExecutable.fingerprint


@cython.no_gc_clear
cdef class LoadedExecutableCore(Handle):
    """A ``PJRT_LoadedExecutable``; what does not depend on the devices, its ``executable`` answers."""

    cdef object executable_
    cdef size_t outputs
    cdef tuple _devices
    cdef bint gone

    @property
    def client(self):
        return self.scope

    @property
    def executable(self):
        cdef PJRT_LoadedExecutable_GetExecutable_Args args
        cdef Pin pin
        if self.executable_ is None:
            pin = Pin.of(self.scope)
            start(&args, PJRT_LoadedExecutable_GetExecutable_Args_STRUCT_SIZE)
            args.loaded_executable = <PJRT_LoadedExecutable *>self.use()
            self.call(SLOT_PJRT_LoadedExecutable_GetExecutable, &args)
            executable = new_executable(self.scope, (<ClientScope>self.scope).platform, args.executable)
            with cython.critical_section(self):
                if self.executable_ is None:
                    self.executable_ = executable
        return self.executable_

    @property
    def addressable_devices(self):
        if self._devices is None:
            devices = _DEVICES.ask(self)
            with cython.critical_section(self):
                if self._devices is None:
                    self._devices = devices
        return self._devices

    @property
    def addressable_device_logical_ids(self):
        """The place of each addressable device; for a plugin without the function, from the device assignment."""
        cdef PJRT_LoadedExecutable_AddressableDeviceLogicalIds_Args args
        cdef size_t index
        start(&args, PJRT_LoadedExecutable_AddressableDeviceLogicalIds_Args_STRUCT_SIZE)
        args.executable = <PJRT_LoadedExecutable *>self.use()
        try:
            self.call(SLOT_PJRT_LoadedExecutable_AddressableDeviceLogicalIds, &args)
        except UnimplementedError:
            assignment = self.device_assignment
            return tuple([assignment.logical_ids(device.id) for device in self.addressable_devices])
        number = count(
            args.num_addressable_device_logical_ids,
            args.addressable_device_logical_ids,
            "the logical ids of an executable",
        )
        ids = args.addressable_device_logical_ids
        return tuple([(ids[index].replica, ids[index].partition) for index in range(number)])

    @property
    def device_assignment(self):
        return DeviceAssignment.from_proto(_ASSIGNMENT.ask(self))

    def fingerprint(self):
        """Return the executable's fingerprint; for an older plugin that of ``PJRT_LoadedExecutable_Fingerprint``."""
        try:
            return self.executable.fingerprint()
        except UnimplementedError:
            return _LOADED_FINGERPRINT.ask(self)

    # Running it.

    def __call__(self, *arguments, **keywords):
        """Run on one device. Where all arguments are buffers already, nothing else is done before the call."""
        if keywords:
            return LoadedExecutable.__call__(self, *arguments, **keywords)
        for argument in arguments:
            if not isinstance(argument, BufferCore):
                return LoadedExecutable.__call__(self, *arguments)
        devices = self.addressable_devices
        if len(devices) != 1:
            return LoadedExecutable.__call__(self, *arguments)
        return tuple(<list>self.run([list(arguments)], devices[0], None, None)[0])

    def execute(self, arguments, options=None, *, returned_futures=None):
        rows = [_row(row) for row in expect_sequence(arguments, "one list of arguments a device")]
        if len({len(row) for row in rows}) > 1:
            raise InvalidArgumentError(
                f"every device takes the same number of arguments, found {[len(row) for row in rows]}"
            )
        devices = self.addressable_devices
        if len(rows) != len(devices):
            raise InvalidArgumentError(
                f"execute takes one list of arguments for each of the executable's {len(devices)} devices, found "
                f"{len(rows)} lists"
            )
        return self.run(rows, None, options, returned_futures)

    def execute_sharded(self, arguments, device, options=None, *, returned_futures=None):
        if device is None:
            raise unexpected(device, "one of executable.addressable_devices")
        return self.run([_row(arguments)], device, options, returned_futures)[0]

    def execute_portable(self, arguments, device, options=None, *, returned_futures=None):
        if device is None:
            raise unexpected(device, "a device to run the program on")
        return self.run([_row(arguments)], device, options, returned_futures)[0]

    cdef list run(self, list arguments, device, options, futures):
        """Execute on all devices in one call. ``arguments`` are new lists, which keep the buffers alive meanwhile."""
        cdef list rows
        self.scope.enter()  # held until the results are in the scope's list, as by a Pin, which would be an object more
        try:
            rows = self._run_pinned(arguments, device, options, futures)
        finally:
            self.scope.leave()
        return rows

    cdef list _run_pinned(self, list arguments, device, options, futures):
        cdef PJRT_LoadedExecutable_Execute_Args args
        cdef PJRT_ExecuteOptions defaults
        cdef ClientScope scope = <ClientScope>self.scope
        cdef size_t num_devices = len(arguments)
        cdef size_t num_args = len(<list>arguments[0]) if num_devices else 0
        cdef void *few[FEW]
        cdef void **pointers = few
        cdef size_t needed = num_devices * (num_args + self.outputs + 3)
        cdef Block many
        cdef ExecuteCall call = None
        if self.gone:
            raise FailedPreconditionError("the executable was deleted; compile it again")
        if futures is not None:
            expect(futures, list, "a list, or None, as returned_futures")
        if needed > FEW:
            many = Block.of(needed * sizeof(void *))
            pointers = <void **>many.data
        memset(pointers, 0, needed * sizeof(void *))
        self._lay_out(&args, pointers, arguments, num_devices, num_args)
        args.executable = <PJRT_LoadedExecutable *>self.use()
        args.execute_device = native_device(scope, device)
        if options is None:
            start(&defaults, PJRT_ExecuteOptions_STRUCT_SIZE)
            args.options = &defaults
        else:
            call = execute_call(scope, options, num_devices)
            args.options = &call.options
        if futures is None and (call is None or not call.outlives):
            args.device_complete_events = NULL
        try:
            self.call(SLOT_PJRT_LoadedExecutable_Execute, &args)  # LoadedExecutable.execute
        except PjrtError as error:
            raise _explained(error, arguments)
        if args.device_complete_events != NULL:
            self._give_futures(args.device_complete_events, num_devices, call, futures)
        return self._take_outputs(args.output_lists, num_devices)

    cdef int _lay_out(
        self,
        PJRT_LoadedExecutable_Execute_Args *args,
        void **pointers,
        list arguments,
        size_t num_devices,
        size_t num_args
    ) except -1:
        """Fill in the pointers: argument lists, output lists, events; then the arguments, and room for the outputs."""
        cdef PJRT_Buffer ***argument_lists = <PJRT_Buffer ***>pointers
        cdef PJRT_Buffer ***output_lists = argument_lists + num_devices
        cdef PJRT_Buffer **next_pointer = <PJRT_Buffer **>(pointers + 3 * num_devices)
        cdef size_t index, position
        cdef list row
        for index in range(num_devices):
            argument_lists[index] = next_pointer
            row = <list>arguments[index]
            for position in range(num_args):
                next_pointer[position] = self._argument(row[position], index, position)
            next_pointer += num_args
        for index in range(num_devices):
            output_lists[index] = next_pointer
            next_pointer += self.outputs
        start(args, PJRT_LoadedExecutable_Execute_Args_STRUCT_SIZE)
        args.argument_lists = <PJRT_Buffer *const *const *>argument_lists
        args.num_devices = num_devices
        args.num_args = num_args
        args.output_lists = <PJRT_Buffer **const *>output_lists
        args.device_complete_events = <PJRT_Event **>(pointers + 2 * num_devices)
        return 0

    cdef PJRT_Buffer *_argument(self, argument, size_t device, size_t position) except NULL:
        if not isinstance(argument, BufferCore) or (<BufferCore>argument).scope is not self.scope:
            raise InvalidArgumentError(
                f"argument {position} of device {device} must be a buffer of this executable's client, found "
                f"{argument!r}; "
                "client.buffer_from_host makes one"
            )
        return <PJRT_Buffer *>(<BufferCore>argument).use()

    cdef int _give_futures(self, PJRT_Event **events, size_t num_devices, ExecuteCall call, futures) except -1:
        cdef size_t index
        for index in range(num_devices):
            if call is not None and call.outlives:
                future = eager_future(self.scope, events[index], None, call)
            else:
                future = lazy_future(self.scope, events[index], None)
            if futures is not None:
                futures.append(future)
        return 0

    cdef list _take_outputs(self, PJRT_Buffer **const *lists, size_t num_devices):
        cdef size_t device, index
        cdef list row, rows = []
        missing = False
        for device in range(num_devices):
            row = []
            for index in range(self.outputs):
                if lists[device][index] == NULL:
                    missing = True
                else:
                    row.append(new_buffer(<ClientScope>self.scope, lists[device][index]))
            rows.append(row)
        if missing:
            raise InternalError(
                f"the plugin ran the program but gave fewer than the {self.outputs} results it has; report it to its "
                "vendor"
            )
        return rows

    # Its end.

    @property
    def is_deleted(self):
        """Whether the executable was deleted, or its client closed."""
        cdef PJRT_LoadedExecutable_IsDeleted_Args args
        if self.native == NULL or self.gone or self.scope.is_shut():
            return True
        start(&args, PJRT_LoadedExecutable_IsDeleted_Args_STRUCT_SIZE)
        args.executable = <PJRT_LoadedExecutable *>self.native
        self.call(SLOT_PJRT_LoadedExecutable_IsDeleted, &args)
        return bool(args.is_deleted)

    def delete(self):
        cdef PJRT_LoadedExecutable_Delete_Args args
        if self.native == NULL or self.gone or self.scope.is_shut():
            return
        start(&args, PJRT_LoadedExecutable_Delete_Args_STRUCT_SIZE)
        args.executable = <PJRT_LoadedExecutable *>self.native
        self.call(SLOT_PJRT_LoadedExecutable_Delete, &args)
        self.gone = True

    def __repr__(self):
        if self.native == NULL or self.scope.is_shut():
            return f"<{type(self).__name__} of a closed client>"
        return LoadedExecutable.__repr__(self)


cdef list _row(arguments):
    """Return the arguments for one device as a new list."""
    if type(arguments) is list or type(arguments) is tuple:
        return list(arguments)
    return list(expect_sequence(arguments, "the arguments as a list of buffers"))


def _of_executable(name):
    """Return a property that reads a property, or binds a method, of ``executable``."""
    return property(lambda self: getattr(self.executable, name), doc=getattr(LoadedExecutable, name).__doc__)


@documented
class PluginLoadedExecutable(LoadedExecutableCore, LoadedExecutable):
    """A compiled program on the devices of a plugin (``PJRT_LoadedExecutable``)."""

    __slots__ = ()

    name = _of_executable("name")
    num_replicas = _of_executable("num_replicas")
    num_partitions = _of_executable("num_partitions")
    num_outputs = _of_executable("num_outputs")
    size_of_generated_code = _of_executable("size_of_generated_code")
    output_element_types = _of_executable("output_element_types")
    output_shapes = _of_executable("output_shapes")
    output_memory_kinds = _of_executable("output_memory_kinds")
    parameter_memory_kinds = _of_executable("parameter_memory_kinds")
    parameter_specs = _of_executable("parameter_specs")
    parameter_names = _of_executable("parameter_names")
    output_layouts = _of_executable("output_layouts")
    parameter_layouts = _of_executable("parameter_layouts")
    output_shardings = _of_executable("output_shardings")
    parameter_shardings = _of_executable("parameter_shardings")
    cost_analysis = _of_executable("cost_analysis")
    memory_stats = _of_executable("memory_stats")
    optimized_program = _of_executable("optimized_program")
    serialize = _of_executable("serialize")
    compile_options = _of_executable("compile_options")
    abi_version = _of_executable("abi_version")
    metadata = _of_executable("metadata")


cdef object new_loaded_executable(ClientScope scope, PJRT_LoadedExecutable *native):
    """Return a loaded executable that the plugin made, and take it over."""
    if native == NULL:
        raise InternalError("the plugin gave no executable where one was expected; report it to its vendor")
    executable = PluginLoadedExecutable()
    (<LoadedExecutableCore>executable).open(
        scope, native, SLOT_PJRT_LoadedExecutable_Destroy  # LoadedExecutable: when it is dropped
    )
    number = executable.executable.num_outputs
    if number > MOST_RESULTS:
        raise InternalError(
            f"the plugin gave {number} as the number of a program's results, which cannot be right; report it to its "
            "vendor"
        )
    (<LoadedExecutableCore>executable).outputs = number
    return executable


cdef object _explained(error, list arguments):
    """Return the error of an execution; a deleted argument is reported as that, whatever the plugin calls it."""
    if isinstance(error, FailedPreconditionError):
        return error
    for device, row in enumerate(arguments):
        for position, argument in enumerate(row):
            if argument.is_deleted:
                return FailedPreconditionError(
                    f"argument {position} of device {device} was deleted or donated; make a new buffer "
                    f"({error.message})",
                    payloads=error.payloads
                )
    return error


# Execute options for a call: callbacks of the host inside programs, donation, contexts, tasks.

_log = logging.getLogger("pjrt")


@cython.no_gc_clear
cdef class ExecuteCall:
    """The options of one execution, with the memory they point to.

    ``outlives`` is set where the plugin uses something in them until the execution is complete, not only in the call.
    """

    cdef PJRT_ExecuteOptions options
    cdef list keep
    cdef Handle held
    cdef bint outlives

    def __dealloc__(self):
        if self.held is not None:
            self.held.let_go()


cdef ExecuteCall execute_call(ClientScope scope, options, size_t num_devices):
    """Return the options for a call."""
    cdef ExecuteCall call = ExecuteCall.__new__(ExecuteCall)
    cdef bytes location
    start(&call.options, PJRT_ExecuteOptions_STRUCT_SIZE)
    expect(options, ExecuteOptions, "execute options as pjrt.ExecuteOptions or None")
    call.keep = []
    call.options.launch_id = <int>whole(options.launch_id, "a launch id as a whole number", 32)
    call.options.use_major_to_minor_data_layout_for_callbacks = options.use_major_to_minor_data_layout_for_callbacks
    if options.non_donatable_input_indices:
        indices = int64_block(sorted(options.non_donatable_input_indices))
        call.keep.append(indices)
        call.options.non_donatable_input_indices = <int64_t *>(<Block>indices).data
        call.options.num_non_donatable_input_indices = len(options.non_donatable_input_indices)
    if options.call_location:
        location = encoded(options.call_location, "ExecuteOptions.call_location")
        call.keep.append(location)
        call.options.call_location = location
    if options.context is not None:
        _add_context(call, scope, options.context)
    if options.task_incarnations:
        _add_tasks(call, options.task_incarnations)
    if options.send_callbacks:
        _add_send_callbacks(call, options.send_callbacks, num_devices)
    if options.recv_callbacks:
        _add_recv_callbacks(call, scope, options.recv_callbacks, num_devices)
    if options.hlo_output_callbacks:
        _add_hlo_output_callbacks(call, options.hlo_output_callbacks)
    return call


cdef int _add_context(ExecuteCall call, ClientScope scope, context) except -1:
    """Add a context, and hold it until the execution is complete, even if it is closed meanwhile."""
    if not isinstance(context, ContextCore) or (<ContextCore>context).scope is not scope:
        raise InvalidArgumentError(
            f"{context!r} is no execute context of this client; make one with client.create_execute_context()"
        )
    call.options.context = <PJRT_ExecuteContext *>(<ContextCore>context).use()
    (<ContextCore>context).hold()
    call.held = context
    call.outlives = True
    return 0


cdef int _add_tasks(ExecuteCall call, incarnations) except -1:
    cdef size_t number = len(incarnations), index = 0
    cdef Block ids = Block.of(number * sizeof(int))
    cdef Block values = int64_block(incarnations.values())
    for task in incarnations:
        (<int *>ids.data)[index] = <int>whole(task, "the id of a task as a whole number", 32)
        index += 1
    call.keep += [ids, values]
    call.options.num_tasks = number
    call.options.task_ids = <int *>ids.data
    call.options.incarnation_ids = <int64_t *>values.data
    return 0


cdef size_t _width(callbacks, size_t num_devices, str what) except? 1:
    """Return the number of callbacks of each device, which is the same for all."""
    if <size_t>len(callbacks) != num_devices or len({len(row) for row in callbacks}) != 1:
        raise InvalidArgumentError(
            f"{what} are one sequence a device, all of one length; the execution has {num_devices} devices, "
            f"found {[len(row) for row in callbacks]}"
        )
    return len(callbacks[0])


cdef int _add_send_callbacks(ExecuteCall call, callbacks, size_t num_devices) except -1:
    cdef size_t width = _width(callbacks, num_devices, "send_callbacks"), row, column
    cdef Block rows = Block.of(num_devices * sizeof(void *))
    cdef Block infos = Block.of(num_devices * width * sizeof(PJRT_SendCallbackInfo))
    cdef PJRT_SendCallbackInfo *info = <PJRT_SendCallbackInfo *>infos.data
    for row in range(num_devices):
        (<PJRT_SendCallbackInfo **>rows.data)[row] = info
        for column in range(width):
            send = callbacks[row][column]
            info.channel_id = send.channel_id
            info.user_arg = <void *>send.callback
            info.send_callback = _on_send
            call.keep.append(send.callback)
            info += 1
    call.keep += [rows, infos]
    call.options.send_callbacks = <PJRT_SendCallbackInfo **>rows.data
    call.options.num_send_ops = width
    call.outlives = True
    return 0


cdef PJRT_Error *_on_send(
    PJRT_Chunk *chunk, PJRT_CallbackError *make_error, size_t total, c_bool done, void *user_arg
) noexcept nogil:
    # A thread of the plugin's, without the GIL. The chunk is ours to free, whatever happens.
    cdef PJRT_Error *error = NULL
    if gate_enter():
        error = _take_chunk(chunk, make_error, total, done, user_arg)
        gate_leave()
    else:
        error = make_error[0](PJRT_Error_Code_CANCELLED, b"the host is ending", 18)
    if chunk.deleter != NULL:
        chunk.deleter(chunk.data, chunk.deleter_arg)
    return error


cdef PJRT_Error *_take_chunk(
    PJRT_Chunk *chunk, PJRT_CallbackError *make_error, size_t total, c_bool done, void *user_arg
) noexcept with gil:
    cdef bytes message
    try:
        (<object>user_arg)(PyBytes_FromStringAndSize(<char *>chunk.data, chunk.size), total, bool(done))
    except BaseException as raised:
        error = from_author(raised)
        message = error.message.encode()
        return make_error[0](<PJRT_Error_Code><int>error.code, message, len(message))
    return NULL


cdef int _add_recv_callbacks(ExecuteCall call, ClientScope scope, callbacks, size_t num_devices) except -1:
    cdef size_t width = _width(callbacks, num_devices, "recv_callbacks"), row, column
    cdef Block rows = Block.of(num_devices * sizeof(void *))
    cdef Block infos = Block.of(num_devices * width * sizeof(PJRT_RecvCallbackInfo))
    cdef PJRT_RecvCallbackInfo *info = <PJRT_RecvCallbackInfo *>infos.data
    for row in range(num_devices):
        (<PJRT_RecvCallbackInfo **>rows.data)[row] = info
        for column in range(width):
            recv = callbacks[row][column]
            scope_and_callback = (scope, recv.callback)
            info.channel_id = recv.channel_id
            info.user_arg = <void *>scope_and_callback
            info.recv_callback = _on_recv
            call.keep.append(scope_and_callback)
            info += 1
    call.keep += [rows, infos]
    call.options.recv_callbacks = <PJRT_RecvCallbackInfo **>rows.data
    call.options.num_recv_ops = width
    call.outlives = True
    return 0


cdef void _on_recv(PJRT_CopyToDeviceStream *stream, void *user_arg) noexcept nogil:
    # A thread of the plugin's, without the GIL. The stream is ours; with the process ending it is left to the plugin.
    if gate_enter():
        _give_stream(stream, user_arg)
        gate_leave()


cdef void _give_stream(PJRT_CopyToDeviceStream *native, void *user_arg) noexcept with gil:
    scope, callback = <tuple>user_arg
    stream = PluginCopyToDeviceStream()
    try:
        (<Handle>stream).open(
            <ClientScope>scope, native, SLOT_PJRT_CopyToDeviceStream_Destroy  # CopyToDeviceStream: when it is dropped
        )
        callback(stream)
    except BaseException:
        _log.exception("the callback of a receive raised; the program receives no more from it")
        (<Handle>stream).free()  # now, not when the exception's frames go: the program waits for the stream


cdef int _add_hlo_output_callbacks(ExecuteCall call, callbacks) except -1:
    cdef size_t number = len(callbacks), index
    cdef Block infos = Block.of(number * sizeof(PJRT_HloOutputCallbackInfo))
    cdef PJRT_HloOutputCallbackInfo *info = <PJRT_HloOutputCallbackInfo *>infos.data
    for index in range(number):
        output = callbacks[index]
        info[index].user_arg = <void *>output.callback
        info[index].callback = _on_hlo_output
        info[index].callback_id = output.callback_id
        info[index].num_operands = output.num_operands
        call.keep.append(output.callback)
    call.keep.append(infos)
    call.options.hlo_output_callbacks = info
    call.options.num_hlo_output_callbacks = number
    call.outlives = True
    return 0


cdef void _on_hlo_output(
    int64_t replica,
    int64_t partition,
    const void *data,
    const int64_t *dims,
    size_t num_dims,
    PJRT_Buffer_Type kind,
    int64_t operand,
    void *user_arg
) noexcept nogil:
    # A thread of the plugin's, without the GIL; the data is the plugin's and lives only during the call.
    if gate_enter():
        _give_output(replica, partition, data, dims, num_dims, kind, operand, user_arg)
        gate_leave()


cdef void _give_output(
    int64_t replica,
    int64_t partition,
    const void *data,
    const int64_t *dims,
    size_t num_dims,
    PJRT_Buffer_Type kind,
    int64_t operand,
    void *user_arg
) noexcept with gil:
    try:
        shape = read_int64s(dims, num_dims, "the shape of an intermediate value")
        dtype = element_type(kind).dtype
        size = dtype.itemsize
        for length in shape:
            size *= length
        array = np.frombuffer(PyBytes_FromStringAndSize(<const char *>data, size), dtype).reshape(shape)
        (<object>user_arg)(replica, partition, array, operand)
    except BaseException:
        _log.exception("the callback of an intermediate value raised; the exception goes no further")


@cython.no_gc_clear
cdef class StreamCore(ClosableHandle):
    """A ``PJRT_CopyToDeviceStream``; freed when it is dropped."""

    def add_chunk(self, data):
        cdef PJRT_CopyToDeviceStream_AddChunk_Args args
        cdef PJRT_Chunk chunk
        cdef HostMemory memory = HostMemory.of(data, False, "a chunk")
        start(&args, PJRT_CopyToDeviceStream_AddChunk_Args_STRUCT_SIZE)
        args.stream = <PJRT_CopyToDeviceStream *>self.use()
        chunk.size = memory.view.len
        chunk.data = malloc(chunk.size or 1)  # a copy, which the plugin frees when it has used it
        chunk.deleter = _free_chunk
        chunk.deleter_arg = NULL
        if chunk.data == NULL:
            raise MemoryError(f"no {chunk.size} bytes of memory for a chunk")
        memcpy(chunk.data, memory.at(0, memory.view.len), chunk.size)
        args.chunk = &chunk
        self.call(SLOT_PJRT_CopyToDeviceStream_AddChunk, &args)
        return lazy_future(self.scope, args.transfer_complete, None)


cdef void _free_chunk(void *data, void *deleter_arg) noexcept nogil:
    free(data)


@documented
class PluginCopyToDeviceStream(StreamCore, CopyToDeviceStream):
    """A stream of chunks to a program of a plugin that receives from the host (``PJRT_CopyToDeviceStream``)."""

    __slots__ = ()

    total_bytes = Getter("PJRT_CopyToDeviceStream_TotalBytes")
    granule_size = Getter("PJRT_CopyToDeviceStream_GranuleSize")
    current_bytes = Getter("PJRT_CopyToDeviceStream_CurrentBytes")


@cython.no_gc_clear
cdef class ContextCore(ClosableHandle):
    """A ``PJRT_ExecuteContext``."""

    def add_user_data(self, type_id, address):
        cdef PJRT_FFI_UserData_Add_Args args
        start(&args, PJRT_FFI_UserData_Add_Args_STRUCT_SIZE)
        args.context = <PJRT_ExecuteContext *>self.use()
        args.user_data.type_id = whole(type_id, "the id of an FFI type as a whole number")
        args.user_data.data = <void *>checked(address, "the address of user data as a whole number")
        self.call(SLOT_PJRT_FFI_UserData_Add, &args)

    def close(self):
        self.free()


@documented
class PluginExecuteContext(ContextCore, ExecuteContext):
    """The context of executions of a plugin, with the user data for its handlers (``PJRT_ExecuteContext``)."""

    __slots__ = ()


cdef object new_context(ClientScope scope):
    """``Client.create_execute_context``."""
    cdef PJRT_ExecuteContext_Create_Args args
    cdef Pin pin = Pin.of(scope)
    start(&args, PJRT_ExecuteContext_Create_Args_STRUCT_SIZE)
    scope.call(SLOT_PJRT_ExecuteContext_Create, &args)
    context = PluginExecuteContext()
    (<Handle>context).open(scope, args.context, SLOT_PJRT_ExecuteContext_Destroy)  # ExecuteContext.close
    return context
