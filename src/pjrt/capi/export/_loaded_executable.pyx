"""Loaded executables shown to a framework, and executions: one trampoline for each."""

cimport cython
from cpython.list cimport PyList_GET_ITEM
from libc.stdint cimport uintptr_t

from pjrt.abi.generated.declarations cimport *
from pjrt.capi._api cimport Block
from pjrt.capi.export._buffer cimport BufferRecord, BufferTemplate, buffer_record
from pjrt.capi.export._client cimport ClientRecord, client_record
from pjrt.capi.export._device cimport device_of
from pjrt.capi.export._event cimport completion_of, done_event, event_of, succeeded
from pjrt.capi.export._executable cimport ExecutableRecord, executable_record
from pjrt.capi.export._execute_options cimport is_plain, read_execute_options
from pjrt.capi.export._gen_handles cimport LoadedExecutableHandle
from pjrt.capi.export._handle_data cimport HandleData
from pjrt.capi.export._owned_bytes cimport give_bytes
from pjrt.capi.export._program cimport read_options, read_program
from pjrt.capi.export._trampolines cimport has_field, keep, put, quiet_trampoline, trampoline

from pjrt.api.errors import InternalError, InvalidArgumentError
from pjrt.api.loaded_executable import FailedRunError
from pjrt.api.program import from_caller


cdef class LoadedExecutableRecord:
    @staticmethod
    cdef LoadedExecutableRecord of(ClientRecord client, loaded):
        cdef LoadedExecutableRecord record = LoadedExecutableRecord.__new__(LoadedExecutableRecord)
        cdef LoadedExecutableHandle *handle = &record.handle
        devices = loaded.addressable_devices
        record.client = client
        record.loaded = loaded
        record.run_all = loaded.execute
        record.run_one = loaded.execute_sharded
        record.run_portable = loaded.execute_portable
        record.first = devices[0] if devices else None
        record.path = loaded.value_path()
        if record.path is not None:
            record.run_values = record.path.run
            record.makers = list(record.path.makers)
        record.num_outputs = loaded.num_outputs
        record.templates = [None] * (record.num_outputs * max(len(devices), 1))
        record.data = HandleData()
        addresses = [<uintptr_t>&client.device(device).handle for device in devices]
        record.data.add_pointers(addresses, &handle.addressable_devices, &handle.num_addressable_devices)
        handle.record = <void *>record
        return record

    cdef PJRT_LoadedExecutable *give(self) noexcept:
        """Return the handle, which is the framework's from now on until it destroys it."""
        keep(self)
        return <PJRT_LoadedExecutable *>&self.handle


cdef LoadedExecutableRecord _record(PJRT_LoadedExecutable *executable):
    if executable == NULL:
        raise InvalidArgumentError("expected a loaded executable, found a null pointer")
    return <LoadedExecutableRecord>(<LoadedExecutableHandle *>executable).record


cdef int _execute(void *raw) except -1:
    args = <PJRT_LoadedExecutable_Execute_Args *>raw
    cdef LoadedExecutableRecord record = _record(args.executable)
    cdef PJRT_Device *target = NULL
    cdef int launch_id
    if has_field(args, &args.execute_device, sizeof(PJRT_Device *)):
        target = args.execute_device
    cdef bint is_plain_run = (
        record.path is not None
        and record.handle.num_addressable_devices == 1
        and args.num_devices == 1
        and (target == NULL or target == record.handle.addressable_devices[0])
        and is_plain(args.options, &launch_id)
    )
    cdef list parameters
    if is_plain_run:
        with cython.critical_section(record):
            parameters = record.parameters
        if parameters is not None and _run_values(record, args, parameters, launch_id):
            return 0
    _run(record, args, target)
    if is_plain_run:
        # The device has taken buffers of these types, and will take others of the same types.
        parameters = [buffer_record(args.argument_lists[0][index]).template for index in range(args.num_args)]
        with cython.critical_section(record):
            record.parameters = parameters


cdef bint _run_values(
    LoadedExecutableRecord record, PJRT_LoadedExecutable_Execute_Args *args, list parameters, int launch_id
) except -1:
    """Run the program on its value path; return whether it was run, which it is not if an argument is unusual."""
    cdef size_t index
    cdef BufferRecord argument
    cdef list records, values = [], futures = []
    cdef PJRT_Event *event = NULL
    if args.num_args != <size_t>len(parameters) or (args.num_args and args.argument_lists == NULL):
        return False
    for index in range(args.num_args):
        argument = buffer_record(args.argument_lists[0][index])
        if argument.template is not <object>PyList_GET_ITEM(parameters, index):
            return False
        value = argument.value(record.path)
        if value is None:
            return False
        values.append(value)
    try:
        results = record.run_values(values, launch_id, futures)
    except FailedRunError as failure:
        results = failure.buffers
        futures = None if args.device_complete_events == NULL else [results[0].ready()]
        _hand_over(record, args, [results], futures, NULL)
        return True
    if results is None:
        return False
    if <size_t>len(results) != record.num_outputs:
        raise InternalError(f"{record.loaded!r}: expected {record.num_outputs} results, found {len(results)}")
    records = [
        BufferRecord.of_value(results[index], record.makers[index], record.templates[index])
        for index in range(record.num_outputs)
    ]
    if args.device_complete_events != NULL:
        args.device_complete_events[0] = event = event_of(futures[0]) if futures else done_event(NULL)
    for index in range(record.num_outputs):
        _give_result(<BufferRecord>PyList_GET_ITEM(records, index), event, not futures, &args.output_lists[0][index])
    return True


cdef void _give_result(BufferRecord record, PJRT_Event *event, bint is_ready, PJRT_Buffer **place) noexcept:
    """Give the buffer of a result to the framework, with the event of the execution, by which it is known to be ready."""
    if is_ready:
        record.handle.completion = succeeded()
    elif event != NULL:
        record.handle.completion = completion_of(event)
    place[0] = record.give()


cdef int _run(
    LoadedExecutableRecord record, PJRT_LoadedExecutable_Execute_Args *args, PJRT_Device *target
) except -1:
    """Run the program with buffers."""
    cdef size_t index
    options = read_execute_options(args.options, args.num_devices, record.client)
    futures = None if args.device_complete_events == NULL else []
    if args.num_args and args.num_devices and args.argument_lists == NULL:
        raise InvalidArgumentError("expected lists of arguments, found a null pointer")
    if target != NULL and args.num_devices != 1:
        raise InvalidArgumentError(f"expected the arguments of one device, found those of {args.num_devices}")
    if target != NULL:
        device = device_of(target)
        run = record.run_one if record.handle.num_addressable_devices else record.run_portable
        results = [run(_arguments(args.argument_lists[0], args.num_args), device, options, returned_futures=futures)]
    elif args.num_devices == 1 and record.handle.num_addressable_devices == 1:
        arguments = _arguments(args.argument_lists[0], args.num_args)
        results = [record.run_one(arguments, record.first, options, returned_futures=futures)]
    else:
        lists = [_arguments(args.argument_lists[index], args.num_args) for index in range(args.num_devices)]
        results = record.run_all(lists, options, returned_futures=futures)
    _refresh_arguments(args)
    _hand_over(record, args, results, futures, target)


cdef list _arguments(PJRT_Buffer *const *handles, size_t number):
    cdef size_t index
    cdef list arguments = []
    if number and handles == NULL:
        raise InvalidArgumentError("expected a list of arguments, found a null pointer")
    for index in range(number):
        arguments.append(buffer_record(handles[index]).buffer())
    return arguments


cdef int _refresh_arguments(PJRT_LoadedExecutable_Execute_Args *args) except -1:
    """Mark the arguments that the program donated as deleted."""
    cdef size_t device, index
    for device in range(args.num_devices):
        for index in range(args.num_args):
            buffer_record(args.argument_lists[device][index]).refresh()


cdef int _hand_over(
    LoadedExecutableRecord record, PJRT_LoadedExecutable_Execute_Args *args, results, futures, PJRT_Device *target
) except -1:
    """Give results and events to the framework: all of them, or none if one fails."""
    cdef size_t device, index, place
    cdef BufferRecord buffer
    cdef bint is_known_place
    cdef BufferTemplate template
    cdef PJRT_Event *event
    cdef list records = []
    if <size_t>len(results) != args.num_devices or (futures is not None and <size_t>len(futures) != args.num_devices):
        raise InternalError(f"{record.loaded!r}: expected results of {args.num_devices} devices, found {len(results)}")
    for device in range(args.num_devices):
        number = len(results[device])
        if <size_t>number != record.num_outputs:
            raise InternalError(f"{record.loaded!r}: expected {record.num_outputs} results, found {number}")
        for index in range(record.num_outputs):
            place = device * record.num_outputs + index
            # A portable executable's outputs are on another device each time.
            is_known_place = place < <size_t>len(record.templates) and (
                target == NULL
                or (record.handle.num_addressable_devices and target == record.handle.addressable_devices[0])
            )
            template = record.templates[place] if is_known_place else None
            buffer = BufferRecord.of(record.client, results[device][index], template)
            if is_known_place:
                record.templates[place] = buffer.template
            records.append(buffer)
    if futures is not None:
        for device in range(args.num_devices):
            args.device_complete_events[device] = event_of(futures[device])
    place = 0
    for device in range(args.num_devices):
        for index in range(record.num_outputs):
            event = NULL if futures is None else args.device_complete_events[device]
            _give_result(<BufferRecord>records[place], event, False, &args.output_lists[device][index])
            place += 1


cdef int _delete(void *raw) except -1:
    cdef LoadedExecutableRecord record = _record((<PJRT_LoadedExecutable_Delete_Args *>raw).executable)
    record.loaded.delete()
    record.handle.is_deleted = True


cdef int _get_executable(void *raw) except -1:
    args = <PJRT_LoadedExecutable_GetExecutable_Args *>raw
    cdef LoadedExecutableRecord record = _record(args.loaded_executable)
    # A new handle for each call, as the caller destroys each: with equal ones, a second destroy of one could not be told.
    args.executable = <PJRT_Executable *>ExecutableRecord.of(record.loaded.executable).give()


cdef int _logical_ids(void *raw) except -1:
    args = <PJRT_LoadedExecutable_AddressableDeviceLogicalIds_Args *>raw
    cdef LoadedExecutableRecord record = _record(args.executable)
    cdef PJRT_LogicalDeviceIds *ids
    cdef Block block
    pairs = list(record.loaded.addressable_device_logical_ids)
    if record.logical_ids is None:
        block = Block.of(len(pairs) * sizeof(PJRT_LogicalDeviceIds))
        ids = <PJRT_LogicalDeviceIds *>block.data
        for index, (replica, partition) in enumerate(pairs):
            ids[<size_t>index].replica = replica
            ids[<size_t>index].partition = partition
        with cython.critical_section(record):
            if record.logical_ids is None:
                record.logical_ids = block
    args.addressable_device_logical_ids = <PJRT_LogicalDeviceIds *>record.logical_ids.data
    args.num_addressable_device_logical_ids = len(pairs)


cdef int _device_assignment(void *raw) except -1:
    args = <PJRT_LoadedExecutable_GetDeviceAssignment_Args *>raw
    give_bytes(_record(args.executable).loaded.device_assignment.to_proto(), &args.serialized_bytes)


cdef int _fingerprint(void *raw) except -1:
    args = <PJRT_LoadedExecutable_Fingerprint_Args *>raw
    cdef LoadedExecutableRecord record = _record(args.executable)
    cdef bytes fingerprint
    if record.fingerprint is None:
        fingerprint = bytes(record.loaded.fingerprint())
        with cython.critical_section(record):
            if record.fingerprint is None:  # set once: frameworks have the address of its bytes
                record.fingerprint = fingerprint
    args.executable_fingerprint = record.fingerprint
    args.executable_fingerprint_size = len(record.fingerprint)


# Making them.

cdef int _compile(void *raw) except -1:
    args = <PJRT_Client_Compile_Args *>raw
    cdef ClientRecord record = client_record(args.client)
    program = read_program(args.program, record.client)
    options = read_options(args.compile_options, args.compile_options_size)
    with from_caller(framework=True):
        loaded = record.client.compile(program, options)
    args.executable = LoadedExecutableRecord.of(record, loaded).give()


cdef int _load(void *raw) except -1:
    args = <PJRT_Client_Load_Args *>raw
    cdef ClientRecord record = client_record(args.client)
    options = read_options(args.compile_options, args.compile_options_size) if args.compile_options_size else None
    loaded = record.client.load(executable_record(args.executable).executable, options)
    args.loaded_executable = LoadedExecutableRecord.of(record, loaded).give()


cdef int _deserialize(void *raw) except -1:
    args = <PJRT_Executable_DeserializeAndLoad_Args *>raw
    cdef ClientRecord record = client_record(args.client)
    options = None
    if (
        has_field(args, &args.overridden_serialized_compile_options_size, sizeof(size_t))
        and args.overridden_serialized_compile_options != NULL
    ):
        options = read_options(
            args.overridden_serialized_compile_options, args.overridden_serialized_compile_options_size
        )
    loaded = record.client.deserialize(args.serialized_executable[: args.serialized_executable_size], options)
    args.loaded_executable = LoadedExecutableRecord.of(record, loaded).give()


cdef int fill_table(PJRT_Api *table) except -1:
    """Set the functions of loaded executables, but for their getters, and those that make them."""
    put(&table.PJRT_LoadedExecutable_Execute, trampoline(_execute))
    put(&table.PJRT_LoadedExecutable_Delete, quiet_trampoline(_delete))
    put(&table.PJRT_LoadedExecutable_GetExecutable, trampoline(_get_executable))
    put(&table.PJRT_LoadedExecutable_AddressableDeviceLogicalIds, trampoline(_logical_ids))
    put(&table.PJRT_LoadedExecutable_GetDeviceAssignment, trampoline(_device_assignment))
    put(&table.PJRT_LoadedExecutable_Fingerprint, trampoline(_fingerprint))
    put(&table.PJRT_Client_Compile, trampoline(_compile))
    put(&table.PJRT_Client_Load, trampoline(_load))
    put(&table.PJRT_Executable_DeserializeAndLoad, trampoline(_deserialize))
