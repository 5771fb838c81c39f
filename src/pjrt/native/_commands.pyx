# cython: language_level=3
"""The commands of a worker: taken out of the memory that it shares with the runtime, done, and answered.

A tiny program takes no longer than the Python around it. So what follows each other fast is done here without any:
launches, the ends of arrays, and answers. ``worker.py`` does the rest. native/library/driver_worker.c has the form of
commands and answers, of which nothing is trusted: each size is read once, and is checked.
"""

cimport cython
from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.dict cimport PyDict_GetItemWithError
from cpython.object cimport PyObject
from cpython.pythread cimport PyThread_get_thread_ident
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy

from functools import partial

from pjrt.api.element_type import ElementType
from pjrt.api.errors import CancelledError, InternalError
from pjrt.api.loaded_executable import ExecuteOptions, FailedRunError

cdef extern from "Python.h":
    int PyThreadState_SetAsyncExc(unsigned long thread, PyObject *exception)

cdef extern from "ring.h" nogil:
    ctypedef struct atomic_bool:
        pass
    bint atomic_load(const atomic_bool *value)
    cdef enum:
        LAUNCH
        FREE
        COPY_OUT
        COPY
        UNLOAD
        DONE
        RELEASE
    ctypedef struct record:
        uint32_t size
        uint32_t kind
        uint64_t fence
    ctypedef struct shared_memory:
        pass
    ctypedef struct command:
        uint32_t size
        uint32_t kind
        uint64_t fence
        const char *data
    int worker_take(shared_memory *shared, command *last)
    void worker_wait(shared_memory *shared, const atomic_bool *is_over)
    void worker_stop(shared_memory *shared, atomic_bool *is_over)
    bint worker_is_cancelled(shared_memory *shared, uint64_t fence)
    int worker_answer(shared_memory *shared, const void *data, size_t size, bint wakes)
    int worker_answer_later(shared_memory *shared, const void *data, size_t size, const atomic_bool *is_over)

cdef struct launch:
    uint32_t device
    uint32_t num_inputs
    uint32_t num_outputs
    uint32_t size_of_options
    uint64_t executable
    int64_t run

cdef struct array_place:
    uint64_t number
    uint64_t place
    uint64_t size

cdef struct done_answer:
    record head
    uint32_t code
    uint32_t size_of_message

cdef struct release_answer:
    record head
    uint64_t place
    uint64_t number


@cython.final
@cython.freelist(64)
cdef class Array:
    """An array of the device: a buffer, or a value of which none was made yet (``pjrt.ValuePath``).

    Attributes:
        value: what a value path takes; ``None`` where it is not known.
    """

    cdef readonly object value
    cdef object _make
    cdef object _buffer
    cdef object _type  # None where nobody has looked yet

    @staticmethod
    cdef Array of_value(value, make, type_):
        cdef Array array = Array.__new__(Array)
        array.value = value
        array._make = make
        array._type = type_
        return array

    @staticmethod
    cdef Array of_buffer(buffer):
        cdef Array array = Array.__new__(Array)
        array._buffer = buffer
        return array

    cdef object buffer(self):
        """Return the buffer. Nothing else holds its value then: a program may write its results there."""
        if self._buffer is None:
            self._buffer = self._make(self.value)
            self._make = None
        self.value = None
        return self._buffer

    cdef bint has_type(self, type_) except -1:
        """Return whether it has a type, from ``type_of``. A value whose program does not say its type has none."""
        if self._type is type_ or type_ is None:
            return True
        if self._type is None and self._buffer is not None:
            self._type = type_of(self._buffer)
        return self._type is type_

    cdef object value_for(self, path):
        """Return the value for a value path; ``None`` where it has none now."""
        if self.value is None:
            self.value = path.value(self._buffer)
        return self.value


@cython.final
cdef class Loaded:
    """An executable that can be launched: what a launch needs of it, and how many devices of the runtime have it.

    Args:
        execute: runs it with buffers.
        parameters: the types of its parameters.
        results: those of its results; ``None`` where it does not say.
        devices: those that it runs on; ``None`` for a portable one, which runs on any.
        path: runs it without buffers; ``None`` where it needs them.
        execute_all: runs it on all its devices in one call; ``None`` where each device gets one.
    """

    def __init__(self, execute, parameters, results, devices, path, execute_all=None):
        self._execute = execute
        self._execute_all = execute_all
        self.parameters = list(parameters)
        self._types = [type_of(each) for each in parameters]
        self._result_types = None if results is None else [type_of(each) for each in results]
        self._devices = devices
        self._path = path
        if path is not None:
            self._run = path.run
            self._makers = list(path.makers)
        self._options = {}
        self.users = 1

    @property
    def num_devices(self) -> int:
        """The number of devices that run it together."""
        return 1 if self._devices is None else len(self._devices)

    def runs_on(self, device) -> bool:
        """Return whether it can be launched on a device."""
        return self._devices is None or device in self._devices

    cdef object options(self, bytes is_kept):
        """Return the options of a launch; ``is_kept`` has for each argument whether it is not 0: it is not donated then."""
        options = self._options.get(is_kept)
        if options is None:
            kept = frozenset([n for n, each in enumerate(is_kept) if each])
            options = self._options[is_kept] = ExecuteOptions(non_donatable_input_indices=kept)
        return options


cdef class CommandLoop:
    """Take a worker's commands, and keep its arrays and executables.

    A worker's class has the methods that it calls: ``unload``, ``copy_out``, ``copy``, ``from_heap``, ``read_options``,
    ``failed_arguments``, ``seen_as``, ``with_given``, ``not_launched`` and ``fail``; with ``takes_turns``,
    ``before_launch`` and ``after_launch``.

    Args:
        shared: the shared memory.

    Attributes:
        arrays: those that the runtime knows, by their numbers; an error, where one was to be the result of an execution
            that did not begin.
        executables: those that were loaded, by their numbers.
        devices: those of the client.
        computing: the fence of what the thread computes in a function of the device; 0 where it does not.
        takes_turns: whether other loops launch programs on the same devices.
    """

    cdef shared_memory *_shared
    cdef Py_buffer _view
    cdef readonly dict arrays
    cdef readonly dict executables
    cdef public list devices
    cdef public bint takes_turns
    cdef readonly uint64_t computing
    cdef dict _under_way
    cdef unsigned long _thread  # the one that takes the commands
    cdef atomic_bool _is_over
    cdef bint _is_broken
    cdef bint _is_interrupted

    def __init__(self, shared):
        self.arrays = {}
        self.executables = {}
        self._under_way = {}
        self.devices = []
        if self._shared != NULL:
            raise InternalError("the loop of commands has its memory already")
        PyObject_GetBuffer(shared, &self._view, PyBUF_WRITABLE)
        if <size_t>self._view.len < sizeof(shared_memory):
            PyBuffer_Release(&self._view)
            raise InternalError("the shared memory is too small for commands and answers")
        self._shared = <shared_memory *>self._view.buf

    def __dealloc__(self):
        if self._shared != NULL:
            PyBuffer_Release(&self._view)

    # Taking commands.

    def do_all(self) -> None:
        """Do what is commanded until ``end`` is called, on the only thread that does so.

        Raises:
            InternalError: the runtime, or somebody else, has written into the memory what cannot be.
        """
        self._thread = PyThread_get_thread_ident()
        while not atomic_load(&self._is_over):
            self.do_posted()
            with nogil:
                worker_wait(self._shared, &self._is_over)
        if self._is_broken:
            raise InternalError("somebody has written into the memory of commands and answers what cannot be")

    def end(self) -> None:
        """Have ``do_all`` return after the command that it does."""
        worker_stop(self._shared, &self._is_over)

    def interrupt(self) -> None:
        """End what is computed, from another thread; with nothing computed, do nothing."""
        if self.computing:
            self._is_interrupted = True
            PyThreadState_SetAsyncExc(self._thread, <PyObject *>KeyboardInterrupt)

    def is_cancelled(self, uint64_t fence) -> bool:
        """Return whether the runtime wants the work with a fence no more."""
        return worker_is_cancelled(self._shared, fence)

    def do_posted(self) -> None:
        """Do what is commanded already."""
        cdef command last
        cdef int count
        last.size = 0
        while not atomic_load(&self._is_over):
            count = worker_take(self._shared, &last)
            if count <= 0:
                self._check(count)
                return
            try:
                self._do_one(&last)
            except Exception as error:
                self.fail(last.fence, error)

    cdef int _do_one(self, const command *last) except -1:
        cdef const uint64_t *words = <const uint64_t *>last.data
        if last.kind == LAUNCH:
            self._launch(last)
        elif last.kind == FREE:
            _check_size(last, 1)
            self.arrays.pop(words[0], None)
        elif last.kind == COPY_OUT:
            _check_size(last, 4)
            self._check_wanted(last.fence)
            self.copy_out(last.fence, words[0], words[1], words[2], words[3])
        elif last.kind == COPY:
            _check_size(last, 3)
            self._check_wanted(last.fence)
            self.copy(last.fence, words[0], words[1], words[2] & 0xFFFFFFFF, words[2] >> 32)
        elif last.kind == UNLOAD:
            _check_size(last, 1)
            self.unload(words[0])

    cdef int _check_wanted(self, uint64_t fence) except -1:
        if worker_is_cancelled(self._shared, fence):
            raise CancelledError("the execution was cancelled")

    # Launches.

    cdef int _launch(self, const command *last) except -1:
        cdef launch head
        cdef uint64_t fence = last.fence
        cdef size_t left = last.size - sizeof(record)
        if left < sizeof(head):
            raise _too_small(last)
        memcpy(&head, last.data, sizeof(head))
        cdef size_t num_words = 3 * <size_t>head.num_inputs + head.num_outputs
        left -= sizeof(head)
        if num_words > left // 8 or head.size_of_options > left - 8 * num_words:
            raise _too_small(last)
        cdef const array_place *inputs = <const array_place *>(last.data + sizeof(head))
        cdef const uint64_t *words = <const uint64_t *>(inputs + head.num_inputs)
        cdef const char *given = <const char *>(words + head.num_outputs)
        cdef uint32_t n
        cdef list outputs = [words[n] for n in range(head.num_outputs)]
        if self.takes_turns:
            self.before_launch(head.executable, head.run)
        try:
            self._check_wanted(fence)
            self._start(&head, inputs, outputs, fence, given)
        except (Exception, KeyboardInterrupt) as error:
            self._end_computing()
            self.not_launched(fence, outputs, error)
        if self.takes_turns:
            self.after_launch(head.executable, head.run)

    cdef int _start(
        self, const launch *head, const array_place *inputs, list outputs, uint64_t fence, const char *given
    ) except -1:
        cdef Loaded loaded = self.executables[head.executable]
        cdef bint is_plain = True
        cdef int64_t launch_id = 0
        cdef uint32_t n
        cdef list arguments, futures = []
        if head.num_inputs > <size_t>len(loaded.parameters):
            raise InternalError(f"expected {len(loaded.parameters)} arguments, found {head.num_inputs}")
        message = None
        if head.size_of_options:
            message, is_plain, launch_id = self.read_options(given[: head.size_of_options])
        if is_plain and loaded._path is not None and self._run(loaded, head, inputs, outputs, fence, launch_id):
            return 0
        if message is not None and message.failed_code:
            arguments = self.failed_arguments(loaded.parameters, head.device, message)
        else:
            arguments = [self._argument_buffer(loaded, n, head.device, &inputs[n]) for n in range(head.num_inputs)]
        options = loaded.options(_kept(inputs, head.num_inputs, outputs))
        if message is not None:
            options = self.with_given(options, message)
        self._begin(fence)
        results = loaded._execute(arguments, self.devices[head.device], options, returned_futures=futures)
        self._end_computing()
        self.finish(outputs, results, fence, futures[0])

    cdef int _begin(self, uint64_t fence) except -1:
        # What is cancelled from here on, ``cancel`` ends: the signal comes behind the fence.
        self.computing = fence
        self._check_wanted(fence)

    cdef int _end_computing(self) except -1:
        self.computing = 0
        if self._is_interrupted:  # perhaps too late
            self._is_interrupted = False
            PyThreadState_SetAsyncExc(self._thread, NULL)

    cdef bint _run(
        self, Loaded loaded, const launch *head, const array_place *inputs, list outputs, uint64_t fence, int64_t launch_id
    ) except -1:
        """Run a program without buffers; return whether it was started."""
        cdef list values = [], futures = []
        cdef Array array
        cdef uint32_t n
        for n in range(head.num_inputs):
            array = self._argument(loaded, n, head.device, &inputs[n])
            value = array.value_for(loaded._path) if array.has_type(loaded._types[n]) else None
            if value is None:
                return False
            values.append(value)
        try:
            self._begin(fence)
            results = loaded._run(values, launch_id, futures)
            self._end_computing()
        except FailedRunError as error:
            self._end_computing()
            self._check_wanted(fence)
            self.finish(outputs, error.buffers, fence, error.buffers[0].ready())
            return True
        if results is None:
            return False
        _check_number(results, outputs)
        for n in range(head.num_outputs):
            self.arrays[outputs[n]] = Array.of_value(
                results[n], loaded._makers[n], None if loaded._result_types is None else loaded._result_types[n]
            )
        if futures:
            futures[0].add_done_callback(partial(self._end, fence))
        else:
            self.done(fence)
        return True

    cdef object _argument_buffer(self, Loaded loaded, uint32_t n, uint32_t device, const array_place *place):
        cdef Array array = self._argument(loaded, n, device, place)
        buffer = array.buffer()
        return buffer if array.has_type(loaded._types[n]) else self.seen_as(buffer, loaded.parameters[n])

    cdef Array _argument(self, Loaded loaded, uint32_t n, uint32_t device, const array_place *place):
        number = place.number
        cdef PyObject *found = PyDict_GetItemWithError(self.arrays, number)
        if found != NULL:
            return _array(<object>found)
        # An argument that the runtime wrote to the heap, which the device may use in place.
        buffer = self.from_heap(number, place.place, place.size, loaded.parameters[n], device)
        cdef Array array = Array.of_buffer(buffer)
        self.arrays[number] = array
        return array

    # Arrays.

    def buffer(self, uint64_t number):
        """Return an array as a buffer.

        Raises:
            PjrtError: the array was to be the result of an execution that did not begin.
        """
        return _array(self.arrays[number]).buffer()

    def value(self, uint64_t number):
        """Return the value of an array; ``None`` where only its buffer is known."""
        return _array(self.arrays[number]).value

    def finish(self, outputs, results, uint64_t fence, future) -> None:
        """Keep the buffers of results, and answer when a future is done."""
        _check_number(results, outputs)
        for number, buffer in zip(outputs, results):
            self.arrays[number] = Array.of_buffer(buffer)
        if future.done():
            self._end(fence, future)
        else:
            self._under_way[fence] = future
            future.add_done_callback(partial(self._end, fence))
            if worker_is_cancelled(self._shared, fence):  # before whoever is told of that could see it
                self.give_up_cancelled()

    def give_up_cancelled(self) -> None:
        """Have the client give up the work under way that the runtime has cancelled."""
        for fence, future in list(self._under_way.items()):
            if worker_is_cancelled(self._shared, fence):
                self._under_way.pop(fence, None)
                self.give_up(future)

    def give_up(self, future) -> None:
        """Have the client give up the work that ends with a future."""
        raise NotImplementedError

    def _end(self, uint64_t fence, future) -> None:
        self._under_way.pop(fence, None)
        error = future.exception()
        if error is not None:
            self.fail(fence, error)
        else:
            self.done(fence)

    # Answers.

    cpdef int done(self, uint64_t fence) except -1:
        """Say that the work with a fence is done."""
        cdef done_answer answer
        answer.head = record(sizeof(answer), DONE, fence)
        answer.code = answer.size_of_message = 0
        return self._say(&answer, sizeof(answer))

    cpdef int release(self, uint64_t place, uint64_t number) except -1:
        """Say that the device no longer looks at a place in the heap, where an array was."""
        cdef release_answer answer
        answer.head = record(sizeof(answer), RELEASE, 0)
        answer.place = place
        answer.number = number
        return self._say(&answer, sizeof(answer))

    def failed(self, uint64_t fence, uint32_t code, uint32_t size_of_message, bytes body) -> None:
        """Say that the work with a fence has failed.

        Args:
            fence: the fence.
            code: the code of the error.
            size_of_message: how many bytes the message has.
            body: the message and what belongs to the error, filled up to multiples of 8 bytes.
        """
        cdef done_answer answer
        answer.head = record(<uint32_t>(sizeof(answer) + len(body)), DONE, fence)
        answer.code = code
        answer.size_of_message = size_of_message
        cdef bytes whole = (<const char *>&answer)[: sizeof(answer)] + body
        self._say(<const char *>whole, len(whole))

    cdef int _say(self, const void *answer, size_t size) except -1:
        # The thread that takes the commands wakes the host when it takes the next one, or finds none.
        cdef bint wakes = self._thread != PyThread_get_thread_ident()
        cdef int posted = worker_answer(self._shared, answer, size, wakes)
        if posted == 0:
            with nogil:
                posted = worker_answer_later(self._shared, answer, size, &self._is_over)
        self._check(posted)

    cdef int _check(self, int count) except -1:
        if count < 0:
            self._is_broken = True
            self.end()


cdef dict _types = {}  # each type by itself: arrays and parameters that agree have one object


cdef object type_of(value):
    """Return the type of a buffer or spec, to compare by identity; ``None`` for a token, which arrays stand for."""
    if value.element_type is ElementType.TOKEN:
        return None
    key = (value.element_type, tuple(value.shape))
    return _types.setdefault(key, key)


cdef bytes _kept(const array_place *inputs, uint32_t count, list outputs):
    """Return which arguments are kept: what the runtime does not write in place, it may use again."""
    cdef bytes is_kept = PyBytes_FromStringAndSize(NULL, count)
    cdef char *flags = PyBytes_AS_STRING(is_kept)
    cdef set written = set(outputs)
    cdef uint32_t n
    for n in range(count):
        flags[n] = inputs[n].number not in written
    return is_kept


cdef Array _array(found):
    if type(found) is not Array:
        raise found
    return <Array>found


cdef int _check_number(results, list outputs) except -1:
    if len(results) != len(outputs):
        raise InternalError(f"expected {len(outputs)} results of the program, found {len(results)}")


cdef int _check_size(const command *last, size_t num_words) except -1:
    if last.size - sizeof(record) < 8 * num_words:
        raise _too_small(last)


cdef object _too_small(const command *last):
    return InternalError(f"a command of kind {last.kind} has {last.size} bytes, which are too few for it")
