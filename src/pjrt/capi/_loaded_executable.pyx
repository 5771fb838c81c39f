"""Loaded executables of a vendor's plugin, and their execution: the hot path of this package."""

cimport cython
from libc.stdint cimport int64_t
from libc.string cimport memset

from pjrt.capi._api cimport count, start
from pjrt.capi._buffer cimport BufferCore, new_buffer
from pjrt.capi._device cimport native_device
from pjrt.capi._event cimport eager_future, lazy_future
from pjrt.capi._executable cimport new_executable
from pjrt.capi._execute_options cimport ExecuteCall, execute_call
from pjrt.capi._gen_abi cimport *
from pjrt.capi._getter cimport Getter
from pjrt.capi._pin cimport Pin
from pjrt.capi._scope cimport ClientScope, Handle
from pjrt.capi._values cimport Block

from pjrt.api.checks import expect, expect_sequence, unexpected
from pjrt.api.compile_options import DeviceAssignment
from pjrt.api.errors import FailedPreconditionError, InternalError, InvalidArgumentError, PjrtError, UnimplementedError
from pjrt.api.loaded_executable import LoadedExecutable
from pjrt.capi._documented import documented

cdef enum:
    FEW = 32  # pointers that fit the stack; more are allocated

cdef Getter _DEVICES = Getter("PJRT_LoadedExecutable_AddressableDevices")  # LoadedExecutable.addressable_devices
cdef Getter _ASSIGNMENT = Getter("PJRT_LoadedExecutable_GetDeviceAssignment")  # LoadedExecutable.device_assignment
cdef Getter _FINGERPRINT = Getter("PJRT_LoadedExecutable_Fingerprint", binary=True)  # LoadedExecutable.fingerprint


@cython.no_gc_clear
cdef class LoadedExecutableCore(Handle):
    """A ``PJRT_LoadedExecutable``; what does not depend on the devices, its ``executable`` answers."""

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
            return _FINGERPRINT.ask(self)

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
        if self.native == NULL or self.scope.is_shut():
            return True
        start(&args, PJRT_LoadedExecutable_IsDeleted_Args_STRUCT_SIZE)
        args.executable = <PJRT_LoadedExecutable *>self.native
        self.call(SLOT_PJRT_LoadedExecutable_IsDeleted, &args)
        return bool(args.is_deleted)

    def delete(self):
        cdef PJRT_LoadedExecutable_Delete_Args args
        if self.native == NULL or self.scope.is_shut():
            return
        start(&args, PJRT_LoadedExecutable_Delete_Args_STRUCT_SIZE)
        args.executable = <PJRT_LoadedExecutable *>self.native
        self.call(SLOT_PJRT_LoadedExecutable_Delete, &args)

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
    (<LoadedExecutableCore>executable).outputs = count(
        executable.executable.num_outputs, native, "the number of an executable's results"
    )
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
