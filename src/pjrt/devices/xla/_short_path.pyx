# cython: language_level=3
"""The short path of an execution: one device, and arguments that need no preparation; see ``Executor.short_path``.

Every execution passes here, so it adds as little as possible to jaxlib's own work. The same in Python takes 0.3 µs more,
a tenth of the execution of a tiny program.
"""

cimport cython
from cpython.buffer cimport PyObject_GetBuffer
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_DECREF

from numpy import ndarray

from pjrt.devices.xla._jaxlib import COPY_DURING_CALL, collect_released, converted, jax
from pjrt.devices.xla.future import READY, nothing

cdef tuple _nothing = ()
cdef unsigned char _turn = 0  # each 256th execution, wait or read finds it at 0; see `_jaxlib.TURNS`


cdef class ArrayHolder:
    """The base class of buffers, with the attributes that the short path reads and writes without a look-up.

    Attributes:
        array: jaxlib's array; ``None`` after ``delete``.
        type: its type.
    """

    cdef object _array
    cdef bint _has_value  # whether the array is known to have one; to ask jaxlib takes a fifth of a read
    cdef public object type  # of one value from the constructor on

    @property
    def array(self):
        # Another thread may delete the buffer. Where Python has no lock for that, reading and counting must be one step.
        with cython.critical_section(self):
            return self._array

    @array.setter
    def array(self, array):
        with cython.critical_section(self):
            self._array = array
            self._has_value = False

    cdef object _await_value(self, array):
        """Wait for the array's value; raise the error of the execution."""
        array.block_until_ready()
        with cython.critical_section(self):
            if self._array is array:
                self._has_value = True

    def ready(self):
        """Return a future of the buffer's value; see ``pjrt.Buffer.ready``."""
        global _turn
        with cython.critical_section(self):
            array = self._array
        if array is not None:
            _turn += 1
            try:
                if not _turn:
                    collect_released()
                if not self.type.runtime.ended and array.is_ready():
                    self._await_value(array)
                    return READY
            except Exception:
                pass  # the array failed, is gone or is not there yet: the future below finds out which
        return self.when_there(nothing)

    def __getbuffer__(self, Py_buffer *view, int flags):
        # NumPy asks for this before it calls `__array__`, which takes twice as long. Where this raises, NumPy goes on to
        # `__array__`, whatever the exception is: so nothing waits here, because Ctrl-C would be lost.
        global _turn
        with cython.critical_section(self):
            array, has_value, kind = self._array, self._has_value, self.type
        _turn += 1
        if not _turn:
            collect_released()
        if array is None or not kind.has_buffer_format or not (has_value or array.is_ready()):
            raise BufferError("the buffer has no value yet, or elements without a format; use numpy.asarray(buffer)")
        runtime = kind.runtime
        if runtime.ended or runtime.watcher.lost:
            raise BufferError("the client was closed or has lost a process; numpy.asarray(buffer) raises its error")
        if not has_value:
            try:
                self._await_value(array)  # without a value there is no memory, and XLA would end the process
            except Exception as error:
                raise BufferError(f"the buffer has no value: {converted(error)}") from error
        PyObject_GetBuffer(array, view, flags)
        Py_DECREF(None)  # which Cython had put into `view.obj`


_state_of_guards = jax.guard_lib.thread_local_state
_allow = jax.guard_lib.TransferGuardLevel.ALLOW
_put = jax.batched_device_put


@cython.final
cdef class Putter:
    """The way of numpy arrays into arguments of one type on one device; see ``_jaxlib.put``.

    Args:
        aval: the type as jaxlib takes it.
        placement: the ``Placement``.
    """

    cdef object _aval
    cdef object _shape
    cdef object _dtype
    cdef object _sharding
    cdef list _devices

    def __init__(self, aval, placement):
        self._aval, self._shape, self._dtype = aval, aval.shape, aval.dtype
        self._sharding, self._devices = placement.sharding, [placement.device]

    cdef object put(self, array):
        """Return jaxlib's array of a numpy array; None if that has another type."""
        if array.dtype is not self._dtype and array.dtype != self._dtype or array.shape != self._shape:
            return None
        # `jax.transfer_guard` is about the arrays of JAX, not about these.
        state = _state_of_guards()
        level = state.host_to_device
        state.host_to_device = _allow
        try:
            return _put(self._aval, self._sharding, [array], self._devices, True, False, COPY_DURING_CALL, True)
        except Exception as error:
            raise converted(error) from error
        finally:
            state.host_to_device = level


@cython.final
cdef class ShortPath:
    """The short path of one program.

    Args:
        executor: the program's executor: it starts programs that donate, and makes the results of failed launches.
        start: jaxlib's ``execute_sharded`` of the program.
        handlers: jaxlib's handlers of the results.
        parameter_types: the types of the parameters.
        putters: for each parameter its ``Putter``; ``None`` where only buffers will do.
        result_types: the types of the results.
        buffer_class: the class of the results, an ``ArrayHolder`` with nothing to initialize but its attributes.
    """

    cdef object _executor
    cdef object _start
    cdef list _handlers
    cdef list _parameter_types
    cdef list _putters
    cdef list _result_types
    cdef object _buffer_class
    cdef bint _donates
    cdef bint _is_closed

    def __init__(
        self, executor, start, list handlers, list parameter_types, list putters, list result_types, buffer_class
    ):
        self._executor = executor
        self._start = start
        self._handlers = handlers
        self._parameter_types = parameter_types
        self._putters = putters
        self._result_types = result_types
        self._buffer_class = buffer_class
        self._donates = bool(executor.donated)

    def close(self):
        """Leave every execution to the long path from now on."""
        self._is_closed = True

    cpdef list run(self, arguments, bint puts=False):
        """Run the program, and return the buffers of the results; return None where the long path has to do it.

        Args:
            arguments: buffers.
            puts: whether they may be numpy arrays, too, which are put on the device.
        """
        global _turn
        if self._is_closed:
            return None
        cdef list arrays = []
        cdef Py_ssize_t number = 0
        cdef Py_ssize_t count = len(self._parameter_types)
        # Types are compared by identity, because each type is one object.
        try:
            if len(arguments) != count:
                return None
            for argument in arguments:
                if number == count:
                    return None
                if puts and type(argument) is ndarray:
                    put = self._putters[number]
                    array = None if put is None else (<Putter?>put).put(argument)
                    if array is None:
                        return None
                    arrays.append(array)
                    number += 1
                    continue
                if type(argument) is self._buffer_class:
                    with cython.critical_section(argument):
                        kind, array = (<ArrayHolder>argument).type, (<ArrayHolder>argument)._array
                else:  # a class of its own may compute its array
                    kind, array = argument.type, argument.array
                if kind is not self._parameter_types[number]:
                    return None
                arrays.append(array)
                number += 1
        except (AttributeError, TypeError):
            return None
        # The program starts below. No exception may lead to the long path any more, which would run it once more.
        try:
            if self._donates:
                results = self._executor.start_donating_alone(arguments, arrays)
                if results is None:
                    return None
            else:
                results = self._start(arrays).consume_with_handlers(self._handlers)
            _turn += 1
            if not _turn:
                collect_released()
        except Exception as error:
            return self._executor.failed(converted(error), [arguments])[0]
        return self._buffers(results)

    cdef list _buffers(self, list arrays):
        cdef list buffers = []
        cdef Py_ssize_t number
        for number in range(len(arrays)):
            # As the class's constructor does it, which is written in Python.
            buffer = (<PyTypeObject *>self._buffer_class).tp_new(self._buffer_class, <PyObject *>_nothing, NULL)
            (<ArrayHolder>buffer)._array = arrays[number]
            (<ArrayHolder>buffer).type = self._result_types[number]
            buffers.append(buffer)
        return buffers


cdef class ShortCall:
    """The call of a loaded executable, which takes its short path first, and ``call_long`` otherwise.

    It is a class in C, because Python calls the method ``__call__`` of a class in Python in a slow way. The short path
    is the attribute ``_short_path``.
    """

    def __call__(self, *arguments, **keywords):
        """Run the program on one device; see ``pjrt.LoadedExecutable``."""
        if not keywords:
            results = (<ShortPath?>self._short_path).run(arguments, True)
            if results is not None:
                return tuple(results)
        return self.call_long(arguments, keywords)
