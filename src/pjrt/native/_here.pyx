"""The arrays of devices that are objects of this process, as the runtime in C sees them, and what it does with them.

native/library/here.h has what both sides ask of each other. The functions below take the interpreter's lock, because the
runtime has none; what they call of the runtime is called without it, since that may wait for other threads.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF, Py_XDECREF
from libc.stdint cimport int64_t, uint64_t, uintptr_t
from libc.stdlib cimport malloc
from libc.string cimport memcpy

from pjrt.native._commands cimport Loaded, type_of

import struct
import threading
import weakref
from dataclasses import replace
from functools import partial

import numpy as np

from pjrt.api.buffer import HostBufferSemantics
from pjrt.api.element_type import ElementType
from pjrt.api.errors import CancelledError, InternalError, from_author
from pjrt.api.future import Future, Promise
from pjrt.api.loaded_executable import FailedRunError
from pjrt.native.served import EXECUTE_OPTIONS, own_layout

cdef extern from "Python.h":
    void PyErr_SetInterrupt()

cdef extern from "pjrt_driver.h" nogil:
    enum:
        PJRT_DRIVER_MESSAGE_SIZE
    ctypedef struct pjrt_driver:
        pass
    ctypedef uint64_t pjrt_fence
    ctypedef struct pjrt_driver_launch:
        size_t device
        uint64_t executable
        size_t num_inputs
        const uint64_t *inputs
        size_t num_outputs
        const uint64_t *outputs
        uint64_t execution

cdef extern from "here.h" nogil:
    ctypedef struct here_lent:
        pass
    ctypedef struct here_block:
        void *array
        void *maker
        void *type
        char *bytes
        size_t device
        size_t kind
        size_t size
    ctypedef struct here_bytes:
        char *data
        here_lent *lent
    ctypedef struct here_launch:
        const pjrt_driver_launch *launch
        const char *options
        size_t options_size
    ctypedef struct here_client:
        void *plugin
        void (*open)(void *, pjrt_driver *, void **, const char *, size_t, char **, size_t *) noexcept
        void (*close)(void *) noexcept
        void (*ask)(void *, const char *, size_t, char **, size_t *) noexcept
        void (*profile)(void *, const char *, size_t, char **, size_t *) noexcept
        void (*unload)(void *, uint64_t) noexcept
        int (*launch)(void *, const here_launch *, pjrt_fence *, char *) noexcept
        int (*copy_out)(void *, here_block *, size_t, void *, size_t, pjrt_fence *, char *) noexcept
        int (*copy)(void *, here_block *, here_block *, pjrt_fence *, char *) noexcept
        int (*address)(void *, here_block *, uint64_t *, char *) noexcept
        int (*is_on_host)(void *, size_t, size_t) noexcept
        void (*drop)(void *, void *) noexcept
    ctypedef struct here_runtime:
        pjrt_fence (*begin)(pjrt_driver *, bint) noexcept nogil
        void (*end)(pjrt_driver *, pjrt_fence, int, const char *, size_t, const char *, size_t) noexcept nogil
        bint (*is_open)(pjrt_driver *, pjrt_fence) noexcept nogil
        here_bytes (*lend)(pjrt_driver *, here_block *) noexcept nogil
        void (*released)(pjrt_driver *, here_lent *) noexcept nogil
        void (*has_array)(pjrt_driver *, here_block *) noexcept nogil
        void (*ref)(pjrt_driver *) noexcept nogil
        void (*unref)(pjrt_driver *) noexcept nogil
        int (*questions)(pjrt_driver *) noexcept nogil

cdef extern from *:
    """
    #define PJRT_BUFFER_WRITE PyBUF_WRITE
    """
    enum:
        PJRT_BUFFER_WRITE


cdef class Arrays:
    """The arrays of one client, and its launches.

    Args:
        served: the client's other side: what it answers, its devices, its memories and its executables.
    """

    cdef pjrt_driver *_driver
    cdef const here_runtime *_runtime
    cdef readonly object served
    cdef dict _executables
    cdef dict _under_way
    cdef dict _executions

    def __init__(self, served, uintptr_t driver, uintptr_t runtime):
        self.served = served
        self._driver = <pjrt_driver *>driver
        self._runtime = <const here_runtime *>runtime
        self._runtime.ref(self._driver)
        self._executables = served._executables
        self._under_way = {}
        self._executions = {}

    def __dealloc__(self):
        if self._driver != NULL:
            self._runtime.unref(self._driver)

    def cancelled(self):
        """Return the futures of the work under way that the runtime has cancelled, once."""
        futures = []
        for fence in list(self._under_way):
            if not self._runtime.is_open(self._driver, fence):
                futures.append(self._under_way.pop(fence, None))
        return [future for future in futures if future is not None]

    def questions(self):
        """Return the descriptor of a socket to ask for functions and the store of the framework."""
        cdef int descriptor
        with nogil:
            descriptor = self._runtime.questions(self._driver)
        return descriptor

    cdef int launch(self, const here_launch *given, pjrt_fence *fence) except -1:
        cdef const pjrt_driver_launch *launch = given.launch
        cdef Loaded loaded = <Loaded>self._executables[launch.executable]
        if loaded._run is not None and given.options == NULL and self._launch_values(loaded, launch, fence):
            return 0
        if loaded._execute_all is not None and launch.execution:
            return self._launch_together(loaded, given, fence)
        futures = []
        try:
            arguments, options = self._prepared(loaded, given)
            results = loaded._execute(arguments, self.served.device(launch.device), options, returned_futures=futures)
        except BaseException as error:
            self._fail(fence, error)
            return 0
        self._set_results(launch, results)
        self._follow(futures[0], fence)
        return 0

    cdef bint _launch_values(self, Loaded loaded, const pjrt_driver_launch *launch, pjrt_fence *fence) except -1:
        """Run a program without buffers; return whether it was started."""
        cdef size_t n
        cdef here_block *block
        cdef list values = [], futures = []
        for n in range(launch.num_inputs):
            block = <here_block *><uintptr_t>launch.inputs[n]
            with cython.critical_section(self):
                value = None if block.maker == NULL else <object>block.array
                if value is not None and not _has_type(block, loaded._types[n]):
                    return False
            if value is None:
                value = loaded._path.value(self._argument(block, loaded, n, launch.device))
            if value is None:
                return False
            values.append(value)
        try:
            results = loaded._run(values, 0, futures)
        except FailedRunError as error:
            self._set_results(launch, error.buffers)
            self._follow(error.buffers[0].ready(), fence)
            return True
        except BaseException as error:
            self._fail(fence, error)
            return True
        if results is None:
            return False
        self._set_results(launch, results, loaded._makers, loaded._result_types)
        if futures:
            self._follow(futures[0], fence)
        return True

    cdef int _launch_together(self, Loaded loaded, const here_launch *given, pjrt_fence *fence) except -1:
        """Give a launch to its execution, which begins with the last one. The runtime starts them in one go."""
        cdef const pjrt_driver_launch *launch = given.launch
        cdef size_t n
        cdef _Together together
        cdef _Pending pending
        try:
            row = self._prepared(loaded, given)
        except BaseException as error:
            row = error
        device = self.served.device(launch.device)
        promise = Promise()
        with cython.critical_section(self):
            together = self._executions.get(launch.execution)
            if together is None:
                self._executions.clear()  # one of which a launch was cancelled: the runtime has ended the others
                together = self._executions[launch.execution] = _Together()
        together.promises[device] = promise
        self._follow(promise.future, fence)
        results = together.pending[device] = []
        for n in range(launch.num_outputs):
            pending = _Pending()
            pending._arrays, pending._together, pending._fence = self, together, fence[0]
            results.append(weakref.ref(pending))
            _set(<here_block *><uintptr_t>launch.outputs[n], pending, _buffer_of, None)
        together.rows[device] = row
        if len(together.rows) == loaded.num_devices and self._executions.pop(launch.execution, None) is not None:
            together.begin(loaded)
        return 0

    cdef tuple _prepared(self, Loaded loaded, const here_launch *given):
        """Return the arguments and the options of a launch."""
        cdef const pjrt_driver_launch *launch = given.launch
        cdef size_t n
        cdef here_block *block
        served = self.served
        options = None if given.options == NULL else EXECUTE_OPTIONS.FromString(given.options[: given.options_size])
        if options is not None and options.failed_code:
            arguments = served.failed_arguments(loaded.parameters, launch.device, options)
        else:
            arguments = [
                self._argument(<here_block *><uintptr_t>launch.inputs[n], loaded, n, launch.device)
                for n in range(launch.num_inputs)
            ]
        # What the runtime does not write in place, it may use again.
        written = {launch.outputs[n] for n in range(launch.num_outputs)}
        known = loaded.options(bytes([launch.inputs[n] not in written for n in range(launch.num_inputs)]))
        if options is not None:
            known = replace(known, **served.given(options))
        return arguments, known

    cdef int _set_results(
        self, const pjrt_driver_launch *launch, results, list makers=None, list types=None
    ) except -1:
        cdef size_t n
        if <size_t>len(results) != launch.num_outputs:
            raise InternalError(f"expected {launch.num_outputs} results, found {len(results)}")
        for n in range(launch.num_outputs):
            _set(
                <here_block *><uintptr_t>launch.outputs[n],
                results[n],
                None if makers is None else makers[n],
                None if types is None else types[n],
            )
        return 0

    cdef int _follow(self, future, pjrt_fence *fence) except -1:
        cdef _End end = _End()
        end._arrays = self
        with nogil:
            fence[0] = self._runtime.begin(self._driver, False)
        end._fence = fence[0]
        self._under_way[fence[0]] = future
        future.add_done_callback(end)
        return 0

    cdef int _fail(self, pjrt_fence *fence, error) except -1:
        with nogil:
            fence[0] = self._runtime.begin(self._driver, False)
        self._end(fence[0], error)
        _interrupt(error)
        return 0

    cdef int _end(self, pjrt_fence fence, error) except -1:
        cdef const here_runtime *runtime = self._runtime
        cdef pjrt_driver *driver = self._driver
        cdef bytes message = b"", payloads = b""
        cdef int code = 0
        if error is not None:
            known = from_author(error)
            code = int(known.code)
            message = known.message.encode()
            payloads = b"".join([_payload(name, value) for name, value in known.payloads.items()])
        cdef const char *text = PyBytes_AS_STRING(message)
        cdef const char *others = PyBytes_AS_STRING(payloads)
        cdef size_t text_size = PyBytes_GET_SIZE(message), others_size = PyBytes_GET_SIZE(payloads)
        with nogil:
            runtime.end(driver, fence, code, text, text_size, others, others_size)
        return 0

    # Arrays.

    cdef object _argument(self, here_block *block, Loaded loaded, size_t number, size_t device):
        """Return an array as a buffer of the client, of the parameter's type."""
        cdef bint has_type
        spec = loaded.parameters[number]
        if block.array == NULL:
            if block.size != <size_t>spec.size_in_bytes:
                raise InternalError(
                    f"expected {spec.size_in_bytes} bytes for an argument, found memory of {block.size} bytes"
                )
            made = self._from_bytes(block, spec, self.served.space(device, block.kind))
            with cython.critical_section(self):
                if block.array == NULL:  # no other thread was faster
                    _set(block, made, None, loaded._types[number])
            with nogil:
                self._runtime.has_array(self._driver, block)
        with cython.critical_section(self):
            buffer = _buffer(block)
            has_type = _has_type(block, loaded._types[number])
        return buffer if has_type else self.served.seen_as(buffer, spec)

    cdef object buffer(self, here_block *block):
        """Return an array that the client has as a buffer."""
        with cython.critical_section(self):
            return _buffer(block)

    cdef object _from_bytes(self, here_block *block, spec, space):
        """Return a buffer of what the host wrote, which the client may use in place."""
        cdef here_bytes given
        cdef _Released released
        client = self.served.client
        if spec.element_type is ElementType.TOKEN:
            return client.buffer_from_host(np.zeros(0, np.bool_), memory_space=space)
        layout, dtype = own_layout(spec), spec.element_type.dtype
        with nogil:
            given = self._runtime.lend(self._driver, block)
        if given.data == NULL:  # nobody wrote there
            return client.buffer_from_host(np.zeros(spec.shape, dtype), memory_space=space, layout=layout)
        released = _Released()
        released._arrays = self
        released._lent = given.lent
        try:
            memory = PyMemoryView_FromMemory(given.data, block.size, PJRT_BUFFER_WRITE) if block.size else bytearray()
            array = np.frombuffer(memory, dtype, spec.size).reshape(spec.shape)
            # Only the memory of an argument that the runtime gives up is written to.
            return client.buffer_from_host(
                array,
                memory_space=space,
                layout=layout,
                semantics=HostBufferSemantics.MUTABLE_ZERO_COPY,
                on_done_with_host_buffer=released,
            )
        except BaseException:
            released()
            raise

    cdef int copy_out(self, here_block *block, size_t offset, void *host, size_t size, pjrt_fence *fence) except -1:
        cdef _CopyOut copy = _CopyOut()
        copy._arrays = self
        copy._offset = offset
        copy._size = size
        copy._host = host
        future = self.buffer(block).to_host()
        with nogil:
            fence[0] = self._runtime.begin(self._driver, True)
        copy._fence = fence[0]
        future.add_done_callback(copy)
        return 0

    cdef int copy(self, here_block *block, here_block *to, pjrt_fence *fence) except -1:
        copied = self.buffer(block).copy_to(self.served.space(to.device, to.kind))
        _set(to, copied, None, None)
        self._follow(copied.ready(), fence)
        return 0


cdef class _End:
    """Says that work has ended."""

    cdef Arrays _arrays
    cdef pjrt_fence _fence

    def __call__(self, future):
        self._arrays._under_way.pop(self._fence, None)
        self._arrays._end(self._fence, future.exception())


cdef class _Together:
    """An execution of a plugin in C on several devices, which gets one call for all of them.

    A plugin may compute before the call for one device returns: a collective waits there for launches that do not come.
    """

    cdef dict rows  # the arguments and options of each device, or the error of a launch
    cdef dict promises
    cdef dict pending  # references to the results of each device
    cdef object error
    cdef object has_begun

    def __cinit__(self):
        self.rows, self.promises, self.pending, self.has_begun = {}, {}, {}, threading.Event()

    cdef int begin(self, Loaded loaded) except -1:
        rows = [self.rows[device] for device in loaded._devices]
        futures = []
        try:
            for row in rows:
                if isinstance(row, BaseException):
                    raise row
            options = [given for _, given in rows]
            given = replace(
                options[0],
                non_donatable_input_indices=frozenset().union(*[each.non_donatable_input_indices for each in options]),
                send_callbacks=[row for each in options for row in each.send_callbacks],
                recv_callbacks=[row for each in options for row in each.recv_callbacks],
            )
            results = loaded._execute_all([arguments for arguments, _ in rows], given, returned_futures=futures)
            for device, buffers in zip(loaded._devices, results, strict=True):
                for reference, buffer in zip(self.pending[device], buffers, strict=True):
                    pending = reference()
                    if pending is not None:
                        (<_Pending>pending)._buffer = buffer
        except BaseException as error:
            self.error = error
            futures = [Future.failed(error)] * len(rows)
        self.rows = None
        self.has_begun.set()
        for device, future in zip(loaded._devices, futures, strict=True):
            future.add_done_callback(partial(_keep, self.promises[device]))
        return 0


def _keep(promise, future):
    error = future.exception()
    if error is None:
        promise.set_result(None)
    else:
        promise.set_error(error)


cdef class _Pending:
    """A result of a launch that may wait for the others of its execution."""

    cdef object __weakref__
    cdef Arrays _arrays
    cdef _Together _together
    cdef pjrt_fence _fence
    cdef object _buffer


def _buffer_of(_Pending pending):
    while not pending._together.has_begun.wait(0.1):
        if not pending._arrays._runtime.is_open(pending._arrays._driver, pending._fence):
            raise CancelledError("the execution was cancelled")
    if pending._buffer is None:
        raise pending._together.error
    return pending._buffer


cdef class _CopyOut:
    """Writes an array to the framework's memory, and says so."""

    cdef Arrays _arrays
    cdef pjrt_fence _fence
    cdef void *_host
    cdef size_t _offset
    cdef size_t _size

    def __call__(self, future):
        cdef const unsigned char[::1] data
        error = future.exception()
        if error is None and self._size:
            try:
                data = np.ascontiguousarray(future.result()).reshape(-1).view(np.uint8)
                if self._offset + self._size > <size_t>data.shape[0]:
                    raise InternalError(f"expected {self._offset + self._size} bytes of an array, found {data.shape[0]}")
                with nogil:
                    memcpy(self._host, &data[self._offset], self._size)
            except Exception as failure:
                error = failure
        self._arrays._end(self._fence, error)


cdef class _Released:
    """Says that the client looks no longer at bytes that were lent to it."""

    cdef Arrays _arrays
    cdef here_lent *_lent

    def __call__(self):
        cdef here_lent *lent = self._lent
        cdef const here_runtime *runtime = self._arrays._runtime
        cdef pjrt_driver *driver = self._arrays._driver
        self._lent = NULL
        if lent != NULL:
            with nogil:
                runtime.released(driver, lent)


cdef void _set(here_block *block, array, maker, type_):
    """Give a block its array. What was there before goes last: that may run other code."""
    block.type = NULL if type_ is None else <void *>type_
    cdef void *array_before = block.array
    cdef void *maker_before = block.maker
    Py_INCREF(array)
    block.array = <void *>array
    if maker is not None:
        Py_INCREF(maker)
    block.maker = NULL if maker is None else <void *>maker
    Py_XDECREF(<PyObject *>array_before)
    Py_XDECREF(<PyObject *>maker_before)


cdef object _buffer(here_block *block):
    """Return an array as a buffer."""
    if block.maker != NULL:
        made = (<object>block.maker)(<object>block.array)
        if block.maker != NULL:  # no other thread was faster
            _set(block, made, None, None if block.type == NULL else <object>block.type)
    return <object>block.array


cdef bint _has_type(here_block *block, type_) except -1:
    """Return whether an array has a type, from ``type_of``. A value whose program does not say its type has none."""
    if block.type == <void *>type_ or type_ is None:
        return True
    if block.type == NULL and block.maker == NULL:
        found = type_of(<object>block.array)
        block.type = NULL if found is None else <void *>found
    return block.type == <void *>type_


cdef bytes _payload(str name, bytes value):
    encoded = name.encode()
    payload = encoded + b"\0" + value
    return struct.pack("<II", len(encoded), len(value)) + payload + bytes(-len(payload) % 8)


cdef _interrupt(error):
    """Raise Ctrl-C again once Python runs, so that a framework that handles the error and goes on is interrupted, too."""
    if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
        PyErr_SetInterrupt()  # last: any Python code that runs after it would be interrupted


cdef int _say(error, char *message) noexcept:
    cdef bytes text
    known = from_author(error)
    text = known.message.encode()[: PJRT_DRIVER_MESSAGE_SIZE - 1].decode(errors="ignore").encode()
    memcpy(message, PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text) + 1)
    cdef int code = int(known.code)
    _interrupt(error)
    return code


cdef void _give(bytes given, char **out, size_t *size) noexcept:
    size[0] = PyBytes_GET_SIZE(given)
    out[0] = <char *>malloc(size[0] + 1)
    if out[0] == NULL:
        size[0] = 0
    else:
        memcpy(out[0], PyBytes_AS_STRING(given), size[0])


# The functions of here_client.

cdef void _open(
    void *plugin, pjrt_driver *driver, void **client, const char *request, size_t size, char **answer, size_t *answer_size
) noexcept with gil:
    arrays, opened = (<Functions>plugin)._opens(<uintptr_t>driver, request[:size])
    _give(opened, answer, answer_size)
    if arrays is not None:
        Py_INCREF(arrays)
        client[0] = <void *>arrays


cdef void _close(void *client) noexcept with gil:
    arrays = <Arrays>client
    Py_DECREF(arrays)
    arrays.served.close()


cdef void _ask(void *client, const char *request, size_t size, char **answer, size_t *answer_size) noexcept with gil:
    _give((<Arrays>client).served.answer_bytes(request[:size]), answer, answer_size)


cdef void _profile(void *plugin, const char *request, size_t size, char **answer, size_t *answer_size) noexcept with gil:
    _give((<Functions>plugin)._profiles(request[:size]), answer, answer_size)


cdef void _unload(void *client, uint64_t executable) noexcept with gil:
    (<Arrays>client).served.unload(executable)


cdef int _launch(void *client, const here_launch *launch, pjrt_fence *fence, char *message) noexcept with gil:
    try:
        return (<Arrays>client).launch(launch, fence)
    except BaseException as error:
        return _say(error, message)


cdef int _copy_out(
    void *client, here_block *block, size_t offset, void *host, size_t size, pjrt_fence *fence, char *message
) noexcept with gil:
    try:
        return (<Arrays>client).copy_out(block, offset, host, size, fence)
    except BaseException as error:
        return _say(error, message)


cdef int _copy(void *client, here_block *block, here_block *copy, pjrt_fence *fence, char *message) noexcept with gil:
    try:
        return (<Arrays>client).copy(block, copy, fence)
    except BaseException as error:
        return _say(error, message)


cdef int _address(void *client, here_block *block, uint64_t *address, char *message) noexcept with gil:
    try:
        address[0] = (<Arrays>client).buffer(block).unsafe_pointer()
        return 0
    except BaseException as error:
        return _say(error, message)


cdef int _is_on_host(void *client, size_t device, size_t kind) noexcept with gil:
    return (<Arrays>client).served.is_on_host(device, kind)


cdef void _drop(void *array, void *maker) noexcept with gil:
    Py_XDECREF(<PyObject *>array)
    Py_XDECREF(<PyObject *>maker)


cdef class Functions:
    """The functions that the runtime calls for a plugin; they live as long as this object.

    Args:
        open: opens a client: it gets the driver's address and a request, and returns ``Arrays`` and the answer.
        profile: answers the requests of profiling sessions; ``None`` for no profiler.

    Attributes:
        address: their address.
    """

    cdef here_client _functions
    cdef object _opens
    cdef object _profiles

    def __init__(self, open, profile):
        self._opens, self._profiles = open, profile
        self._functions = here_client(
            plugin=<void *>self, open=_open, close=_close, ask=_ask, profile=_profile, unload=_unload,
            launch=_launch, copy_out=_copy_out, copy=_copy, address=_address, is_on_host=_is_on_host, drop=_drop,
        )
        if profile is None:
            self._functions.profile = NULL

    @property
    def address(self):
        return <uintptr_t>&self._functions
