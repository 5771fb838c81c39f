"""Executables: compiled programs, loaded on no devices or on some; their execution, and its options.

The execution is the hot path of this package.
"""

import functools
import logging

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.object cimport PyObject, PyTypeObject
from libc.stdint cimport int64_t
from libc.string cimport memcmp, memset

from pjrt.capi._api cimport address as checked
from pjrt.capi._api cimport (
    Block, blob, count, deleter_t, element_type, encoded, function_t, gate_enter, gate_leave, int64_block, read_int64s,
    read_shape, start, text, whole
)
from pjrt.capi._buffer cimport GONE, PERHAPS_GONE, BufferCore, new_buffer
from pjrt.capi._device cimport (
    addressable_device, native_device, native_memory, output_layouts, parameter_layouts
)
from pjrt.abi.generated.declarations cimport *
from pjrt.capi._scope cimport (
    ClientScope, ClosableHandle, Constant, Getter, Handle, Pin, Scope, eager_future, lazy_future
)

import numpy as np

from pjrt.api.checks import expect, expect_sequence, unexpected
from pjrt.api.compile_options import CompileOptions, DeviceAssignment
from pjrt.api.errors import (
    FailedPreconditionError, InternalError, InvalidArgumentError, PjrtError, UnimplementedError, from_author
)
from pjrt.api.element_type import ElementType
from pjrt.api.executable import CompiledMemoryStats, Executable
from pjrt.api.loaded_executable import ExecuteContext, ExecuteOptions, LoadedExecutable
from pjrt.api.program import Program
from pjrt.api.shape_spec import ShapeSpec, format_shape
from pjrt.capi._buffer import PluginBuffer
from pjrt.capi._program import expected_parameters, parameters_of
from pjrt.capi._scope import documented

cdef extern from "Python.h":
    PyObject *PyList_GET_ITEM(object row, Py_ssize_t index)
    PyTypeObject *Py_TYPE(PyObject *thing)

_DEFAULT_MEMORY, _ORDINARY_MEMORY = "device", "unpinned_host"
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

    cdef bint _call_shardings(self, size_t slot, void *args) except -1:
        """Ask for shardings; return False where the plugin cannot tell them and the program has one partition."""
        try:
            self.call(slot, args)
        except UnimplementedError:
            if self.num_partitions > 1:
                raise
            return False
        return True

    @property
    def output_shardings(self):
        cdef PJRT_Shardings_PJRT_Executable_OutputShardings_Args args
        start(&args, PJRT_Shardings_PJRT_Executable_OutputShardings_Args_STRUCT_SIZE)
        args.executable = <PJRT_Executable *>self.use()
        if not self._call_shardings(SLOT_PJRT_Shardings_PJRT_Executable_OutputShardings, &args):
            return None
        shardings = _blobs(args.shardings, args.sharding_sizes, args.num_outputs, "the shardings of the results")
        # XLA reports the sharding of the empty tuple for a program without results.
        return [] if shardings is not None and len(shardings) == 1 and self.num_outputs == 0 else shardings

    @property
    def parameter_shardings(self):
        cdef PJRT_Shardings_PJRT_Executable_ParameterShardings_Args args
        start(&args, PJRT_Shardings_PJRT_Executable_ParameterShardings_Args_STRUCT_SIZE)
        args.executable = <PJRT_Executable *>self.use()
        if not self._call_shardings(SLOT_PJRT_Shardings_PJRT_Executable_ParameterShardings, &args):
            return None
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

    @property
    def output_specs(self):
        return tuple(map(ShapeSpec, self.output_shapes, self.output_element_types))

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

cdef PyTypeObject *_BUFFER_TYPE = <PyTypeObject *>PluginBuffer


# What arguments must be. Vendors' plugins end the process, or read memory that is not theirs, over arguments that no
# framework sends. A buffer keeps what it was found to be, so that the check before a call is one comparison an argument.

cdef class ArgumentKind:
    """The type, shape and place of an argument or a result: one object for each in a client, as long as that lives.

    What is not known, or need not be asked because there is one of it, is not checked: a type of −1, a null place.
    """

    cdef int element_type
    cdef tuple shape
    cdef Block dims
    cdef object device
    cdef PJRT_Device *native_device
    cdef PJRT_Memory *memory
    cdef object memory_space

    @staticmethod
    cdef ArgumentKind of(ClientScope scope, spec, device, memory_space):
        """Return the client's one kind of arguments of a type, shape and place; each may be ``None``."""
        cdef ArgumentKind kind = ArgumentKind.__new__(ArgumentKind)
        kind.element_type, kind.shape = (-1, ()) if spec is None else spec
        kind.dims = int64_block(kind.shape)
        kind.device = device
        kind.native_device = native_device(scope, device)
        kind.memory_space = memory_space
        kind.memory = native_memory(scope, memory_space)
        return scope.kinds.setdefault((kind.element_type, kind.shape, device, memory_space), kind)

    cdef int check(self, BufferCore buffer, size_t row, size_t position) except -1:
        """Raise an error unless a buffer of the client is of this kind.

        Raises:
            InvalidArgumentError: it is of another type, shape, device or memory space.
        """
        if self.element_type >= 0 and not self._is_array(buffer):
            raise InvalidArgumentError(
                f"argument {position} of device {row} must be {format_shape(ElementType(self.element_type), self.shape)}, "
                f"found a buffer of {format_shape(buffer.element_type, buffer.shape)}; convert it, or compile the "
                "program for it"
            )
        if self.native_device != NULL and not self._is_here(buffer):
            raise InvalidArgumentError(
                f"argument {position} of device {row} must be on {self.device}, found a buffer on {buffer.device}; copy "
                "it with buffer.copy_to"
            )
        if self.memory != NULL and not self._is_in_memory(buffer):
            raise InvalidArgumentError(
                f"argument {position} of device {row} must be in the memory {self.memory_space}, found a buffer in "
                f"{buffer.memory_space}; copy it with buffer.copy_to"
            )
        return 0

    # Each asks the plugin. What that does not tell is not checked.

    cdef bint _is_array(self, BufferCore buffer) except -1:
        cdef PJRT_Buffer_ElementType_Args element
        cdef PJRT_Buffer_Dimensions_Args dimensions
        cdef size_t rank = len(self.shape)
        start(&element, PJRT_Buffer_ElementType_Args_STRUCT_SIZE)
        start(&dimensions, PJRT_Buffer_Dimensions_Args_STRUCT_SIZE)
        element.buffer = dimensions.buffer = <PJRT_Buffer *>buffer.native
        try:
            Handle.call(buffer, SLOT_PJRT_Buffer_ElementType, &element)
            Handle.call(buffer, SLOT_PJRT_Buffer_Dimensions, &dimensions)
        except PjrtError:
            return True
        return <int>element.type == self.element_type and dimensions.num_dims == rank and (
            rank == 0 or memcmp(dimensions.dims, self.dims.data, rank * sizeof(int64_t)) == 0
        )

    cdef bint _is_here(self, BufferCore buffer) except -1:
        cdef PJRT_Buffer_Device_Args args
        start(&args, PJRT_Buffer_Device_Args_STRUCT_SIZE)
        args.buffer = <PJRT_Buffer *>buffer.native
        try:
            Handle.call(buffer, SLOT_PJRT_Buffer_Device, &args)
            return args.device == self.native_device or self.device in buffer.memory_space.devices
        except PjrtError:
            return True

    cdef bint _is_in_memory(self, BufferCore buffer) except -1:
        cdef PJRT_Buffer_Memory_Args args
        start(&args, PJRT_Buffer_Memory_Args_STRUCT_SIZE)
        args.buffer = <PJRT_Buffer *>buffer.native
        try:
            Handle.call(buffer, SLOT_PJRT_Buffer_Memory, &args)
            # Compilers for the host take no notice of this kind, and report "device" in its place.
            return args.memory == self.memory or buffer.memory_space.kind == _ORDINARY_MEMORY
        except PjrtError:
            return True


cdef class DeviceKinds:
    """The kinds of an executable's arguments and results on one device, as addresses; the client keeps them."""

    cdef object device
    cdef size_t any_argument
    cdef Block arguments  # None where the parameters are not known
    cdef Block results  # None where the results are not known


cdef class Places:
    """Numbers of arguments."""

    cdef Block block
    cdef size_t *numbers
    cdef size_t size

    @staticmethod
    cdef Places of(numbers):
        cdef Places places = Places.__new__(Places)
        places.block = int64_block(numbers)
        places.numbers = <size_t *>places.block.data
        places.size = len(numbers)
        return places


cdef class Expected:
    """The arguments and results of a program, as far as known: one object, so that threads see all or none."""

    cdef Py_ssize_t num_parameters  # -1 where it is not known
    cdef list parameters  # element type and shape of each, or None
    cdef list results
    cdef tuple parameter_kinds
    cdef tuple result_kinds
    cdef Places donated
    cdef dict by_device

    cdef DeviceKinds on(self, ClientScope scope, device):
        """Return the kinds of the arguments on a device, which is one that the program runs on."""
        cdef DeviceKinds kinds = DeviceKinds.__new__(DeviceKinds)
        kinds.device = device
        kinds.any_argument = (<size_t *>_addresses(scope, [None], [None], device).data)[0]
        if self.parameters is not None:
            kinds.arguments = _addresses(scope, self.parameters, self.parameter_kinds, device)
        if self.results is not None:
            kinds.results = _addresses(scope, self.results, self.result_kinds, device)
        return self.by_device.setdefault(device, kinds)


cdef Block _addresses(ClientScope scope, list specs, kinds, device):
    """Return the addresses of kinds for a device."""
    cdef Block block = Block.of(len(specs) * sizeof(size_t))
    cdef size_t index = 0
    spaces = {space.kind: space for space in device.memory_spaces} if any(kinds) else {}
    only = None if len(scope.devices) == 1 else device
    for spec, name in zip(specs, kinds):
        space = spaces.get(name) if len(spaces) > 1 else None
        if name == _ORDINARY_MEMORY or (name == _DEFAULT_MEMORY and space is not device.default_memory_space):
            space = None  # a compiler calls the default "device", and the device may not
        kind = ArgumentKind.of(scope, spec, only, space)
        (<size_t *>block.data)[index] = <size_t><PyObject *>kind
        index += 1
    return block


cdef inline PJRT_Buffer *_known(PyObject *argument, size_t kind) noexcept:
    """Return the pointer for an argument that was found to be of a kind, and is not closed; otherwise null."""
    if Py_TYPE(argument) == _BUFFER_TYPE and (<BufferCore>argument).standing == kind:
        return <PJRT_Buffer *>(<BufferCore>argument).native
    return NULL


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
    # Of its arguments: set once, before the first run and after it.
    cdef object source
    cdef Expected expected
    cdef DeviceKinds only_kinds
    cdef Places donated

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
        cdef DeviceKinds kinds
        if self.gone:
            raise FailedPreconditionError("the executable was deleted; compile it again")
        if futures is not None:
            expect(futures, list, "a list, or None, as returned_futures")
        if needed > FEW:
            many = Block.of(needed * sizeof(void *))
            pointers = <void **>many.data
        memset(pointers, 0, needed * sizeof(void *))
        if self.expected is None:
            self._read_program()
        if self.expected.num_parameters != <Py_ssize_t>num_args and self.expected.num_parameters >= 0 and num_devices:
            raise InvalidArgumentError(
                f"the program {self.name!r} takes {self.expected.num_parameters} arguments, found {num_args}"
            )
        kinds = self.only_kinds
        if kinds is not None and kinds.device is not device:
            kinds = None
        if options is not None:
            call = execute_call(scope, options, num_devices, num_args)
        self._lay_out(&args, pointers, arguments, num_devices, num_args, device, options, kinds)
        args.executable = <PJRT_LoadedExecutable *>self.use()
        args.execute_device = native_device(scope, device)
        if call is None:
            start(&defaults, PJRT_ExecuteOptions_STRUCT_SIZE)
            args.options = &defaults
        else:
            args.options = &call.options
        if futures is None and (call is None or not call.outlives):
            args.device_complete_events = NULL
        try:
            self.call(SLOT_PJRT_LoadedExecutable_Execute, &args)  # LoadedExecutable.execute
        except PjrtError as error:
            raise _explained(error, arguments)
        if self.donated is None and (options is None or not options.non_donatable_input_indices):
            self._watch_donation(arguments, num_args)
        if args.device_complete_events != NULL:
            self._give_futures(args.device_complete_events, num_devices, call, futures)
        return self._take_outputs(args.output_lists, num_devices, device, kinds)

    def _read_program(self):
        """Read what the program takes and gives: from the program itself, and from what the plugin reports."""
        cdef Expected expected = Expected.__new__(Expected)
        with cython.critical_section(self):
            source = self.source
        read = expected_parameters(source, self.executable)
        parameter_kinds = _told(self.executable, "parameter_memory_kinds")
        result_kinds = None if parameter_kinds is None else _told(self.executable, "output_memory_kinds")
        types, shapes = _told(self.executable, "output_element_types"), _told(self.executable, "output_shapes")
        expected.parameters, donated = (None, ()) if read is None else read
        if expected.parameters is None and parameter_kinds is not None:
            expected.parameters = [None] * len(parameter_kinds)
        if types is not None and shapes is not None and len(types) == len(shapes) == <Py_ssize_t>self.outputs:
            expected.results = [(int(kind), shape) for kind, shape in zip(types, shapes)]
        expected.num_parameters = -1 if expected.parameters is None else len(expected.parameters)
        expected.parameter_kinds = _as_many(parameter_kinds, expected.parameters)
        expected.result_kinds = _as_many(result_kinds, expected.results)
        expected.donated = Places.of(donated)
        expected.by_device = {}
        with cython.critical_section(self):
            if self.expected is None:
                self.expected = expected
                self.source = None

    cdef DeviceKinds _kinds_on(self, device, size_t row):
        """Return the kinds of the arguments on a device; on that of a row where it is ``None``.

        Raises:
            InvalidArgumentError: the program does not run on the device.
        """
        cdef DeviceKinds kinds
        if device is None:
            device = self._devices[row]
        kinds = self.expected.by_device.get(device)
        return self._new_kinds(device) if kinds is None else kinds

    cdef DeviceKinds _new_kinds(self, device):
        cdef DeviceKinds kinds
        devices = self.addressable_devices
        if devices and device not in devices:
            raise InvalidArgumentError(
                f"the program {self.name!r} was not compiled for {device}; it runs on {', '.join(map(str, devices))}"
            )
        addressable_device(<ClientScope>self.scope, device)
        kinds = self.expected.on(<ClientScope>self.scope, device)
        if len(devices) == 1:
            with cython.critical_section(self):
                if self.only_kinds is None:
                    self.only_kinds = kinds
        return kinds

    cdef int _watch_donation(self, list arguments, size_t num_args) except -1:
        """See, after the first run, which arguments the plugin took: programs need not tell."""
        cdef size_t position
        cdef BufferCore buffer
        cdef Places known = self.expected.donated
        taken = {known.numbers[position] for position in range(known.size)}
        for row in arguments:
            for position in range(num_args):
                buffer = <BufferCore>row[position]
                # What is gone already, another thread has deleted meanwhile.
                if position not in taken and buffer.standing != GONE and buffer.was_taken():
                    taken.add(position)
                    buffer.standing = PERHAPS_GONE
        with cython.critical_section(self):
            if self.donated is None:
                self.donated = Places.of(sorted(taken))
        return 0

    cdef int _lay_out(
        self,
        PJRT_LoadedExecutable_Execute_Args *args,
        void **pointers,
        list arguments,
        size_t num_devices,
        size_t num_args,
        device,
        options,
        DeviceKinds kinds
    ) except -1:
        """Fill in the pointers: argument lists, output lists, events; then the arguments, and room for the outputs."""
        cdef PJRT_Buffer ***argument_lists = <PJRT_Buffer ***>pointers
        cdef PJRT_Buffer ***output_lists = argument_lists + num_devices
        cdef PJRT_Buffer **next_pointer = <PJRT_Buffer **>(pointers + 3 * num_devices)
        cdef size_t index, place, position
        cdef size_t *expected
        cdef bint each = kinds is None
        cdef Places donated = self.expected.donated if self.donated is None else self.donated
        cdef list row
        for index in range(num_devices):
            argument_lists[index] = next_pointer
            row = <list>arguments[index]
            if each:
                kinds = self._kinds_on(device, index)
            expected = NULL if kinds.arguments is None else <size_t *>kinds.arguments.data
            for place in range(donated.size):  # before the others: a buffer that is met again is found to be marked
                position = donated.numbers[place]
                if options is None or position not in options.non_donatable_input_indices:
                    next_pointer[position] = self._argument(row, kinds, index, position, next_pointer, num_args)
                    (<BufferCore>PyList_GET_ITEM(row, position)).standing = PERHAPS_GONE
            for position in range(num_args):
                if next_pointer[position] == NULL:
                    next_pointer[position] = _known(
                        PyList_GET_ITEM(row, position), kinds.any_argument if expected == NULL else expected[position]
                    )
                    if next_pointer[position] == NULL:
                        next_pointer[position] = self._argument(row, kinds, index, position, next_pointer, num_args)
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

    cdef PJRT_Buffer *_argument(
        self, list row, DeviceKinds kinds, size_t device, size_t position, PJRT_Buffer **others, size_t num_args
    ) except NULL:
        """Return the pointer for an argument, checked."""
        cdef BufferCore buffer
        cdef size_t other, kind = kinds.any_argument
        cdef object argument = row[position]
        if kinds.arguments is not None:
            kind = (<size_t *>kinds.arguments.data)[position]
        if _known(<PyObject *>argument, kind) != NULL:
            return _known(<PyObject *>argument, kind)
        if not isinstance(argument, BufferCore) or (<BufferCore>argument).scope is not self.scope:
            raise InvalidArgumentError(
                f"argument {position} of device {device} must be a buffer of this executable's client, found "
                f"{argument!r}; "
                "client.buffer_from_host makes one"
            )
        buffer = <BufferCore>argument
        buffer.use()
        if buffer.is_gone():
            raise FailedPreconditionError(
                f"argument {position} of device {device} was deleted or donated; make a new buffer"
            )
        for other in range(num_args if buffer.standing == PERHAPS_GONE else 0):
            if others[other] == buffer.native:
                raise InvalidArgumentError(
                    f"argument {position} of device {device} is the same buffer as argument {other}, and the program "
                    "donates it; copy it, or name it in ExecuteOptions.non_donatable_input_indices"
                )
        if buffer.standing != kind:
            (<ArgumentKind><PyObject *>kind).check(buffer, device, position)
            if buffer.standing != GONE:  # as it is where another thread has deleted it meanwhile
                buffer.standing = kind
        return <PJRT_Buffer *>buffer.native

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

    cdef list _take_outputs(self, PJRT_Buffer **const *lists, size_t num_devices, device, DeviceKinds kinds):
        cdef size_t number, index
        cdef size_t *results
        cdef list row, rows = []
        cdef bint each = kinds is None
        missing = False
        for number in range(num_devices):
            row = []
            if each:
                kinds = self._kinds_on(device, number)
            results = NULL if kinds.results is None else <size_t *>kinds.results.data
            for index in range(self.outputs):
                if lists[number][index] == NULL:
                    missing = True
                    continue
                buffer = new_buffer(<ClientScope>self.scope, lists[number][index])
                if results != NULL:
                    (<BufferCore>buffer).standing = results[index]
                row.append(buffer)
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
    """Return a property that reads a property of ``executable``."""
    return property(lambda self: getattr(self.executable, name), doc=getattr(LoadedExecutable, name).__doc__)


def _asks_executable(name):
    """Return a method that calls one of ``executable``.

    It keeps the loaded executable meanwhile, of which the executable of XLA's plugins is but a view.
    """
    def ask(self, *arguments, **keywords):
        return getattr(self.executable, name)(*arguments, **keywords)

    ask.__name__, ask.__doc__ = name, getattr(LoadedExecutable, name).__doc__
    return ask


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
    output_specs = _of_executable("output_specs")
    output_memory_kinds = _of_executable("output_memory_kinds")
    parameter_memory_kinds = _of_executable("parameter_memory_kinds")
    parameter_specs = _of_executable("parameter_specs")
    parameter_names = _of_executable("parameter_names")
    output_layouts = _of_executable("output_layouts")
    parameter_layouts = _of_executable("parameter_layouts")
    output_shardings = _of_executable("output_shardings")
    parameter_shardings = _of_executable("parameter_shardings")
    cost_analysis = _asks_executable("cost_analysis")
    memory_stats = _asks_executable("memory_stats")
    optimized_program = _asks_executable("optimized_program")
    serialize = _asks_executable("serialize")
    compile_options = _asks_executable("compile_options")
    abi_version = _asks_executable("abi_version")
    metadata = _asks_executable("metadata")


cdef object _told(executable, str name):
    """Return what a plugin reports of an executable, or ``None`` where it does not."""
    try:
        return getattr(executable, name)
    except PjrtError:
        return None


cdef tuple _as_many(kinds, specs):
    """Return the kinds of memory of parameters or results; ``None`` for each where they are not known."""
    if specs is None or kinds is None or len(kinds) != len(specs):
        return (None,) * len(specs or ())
    return tuple(kinds)


cdef object new_loaded_executable(ClientScope scope, PJRT_LoadedExecutable *native, source):
    """Return a loaded executable that the plugin made, and take it over.

    Args:
        source: the program that was compiled, or ``None`` if its parameters are not those on a device.
    """
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
    (<LoadedExecutableCore>executable).source = source
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


cdef ExecuteCall execute_call(ClientScope scope, options, size_t num_devices, size_t num_args):
    """Return the options for a call."""
    cdef ExecuteCall call = ExecuteCall.__new__(ExecuteCall)
    cdef bytes location
    start(&call.options, PJRT_ExecuteOptions_STRUCT_SIZE)
    expect(options, ExecuteOptions, "execute options as pjrt.ExecuteOptions or None")
    call.keep = []
    call.options.launch_id = <int>whole(options.launch_id, "a launch id as a whole number", 32)
    call.options.use_major_to_minor_data_layout_for_callbacks = options.use_major_to_minor_data_layout_for_callbacks
    if options.non_donatable_input_indices:
        strangers = [index for index in options.non_donatable_input_indices if not 0 <= index < num_args]
        if strangers:
            raise InvalidArgumentError(
                f"ExecuteOptions.non_donatable_input_indices names {strangers}, there are {num_args} arguments"
            )
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
    from pjrt.capi._transfers import PluginCopyToDeviceStream  # here: few programs receive from the host

    for row in range(num_devices):
        (<PJRT_RecvCallbackInfo **>rows.data)[row] = info
        for column in range(width):
            recv = callbacks[row][column]
            receiver = (scope, PluginCopyToDeviceStream, recv.callback)
            info.channel_id = recv.channel_id
            info.user_arg = <void *>receiver
            info.recv_callback = _on_recv
            call.keep.append(receiver)
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
    scope, stream_class, callback = <tuple>user_arg
    stream = stream_class()
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
