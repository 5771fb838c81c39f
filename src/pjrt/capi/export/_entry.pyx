"""The way from the table's functions into Python, and of errors out of it.

What needs Python is an *implementation*: it takes the argument struct, and may raise. The function in the table is an
entry that passes the gate, takes the GIL, calls the implementation, and turns any exception into a ``PJRT_Error``; so
none can escape, and once the interpreter has begun to end the answer is an error instead of a call into it.
"""

from cpython.ref cimport Py_DECREF, Py_INCREF

from pjrt.capi._gate cimport gate_enter, gate_leave
from pjrt.capi._gen_abi cimport *

import logging
import threading

from pjrt.api.author_errors import from_author
from pjrt.api.errors import InternalError, PjrtError, ResourceExhaustedError

_log = logging.getLogger("pjrt")

cdef extern from "Python.h":
    void PyErr_SetInterrupt()

cdef extern from "pjrt_support/error.h" nogil:
    void pjrt_error_read(const PJRT_Error *error, const char **message, size_t *size)
    PJRT_Error_Code pjrt_error_code(const PJRT_Error *error)
    void pjrt_error_add_payload(PJRT_Error *error, const char *key, size_t key_size, const char *value, size_t value_size)

cdef extern from "pjrt_support/entries.h" nogil:
    ctypedef PJRT_Error *(*pjrt_entry)(void *args)
    PJRT_Error *(*pjrt_enter)(void *args, int entry)
    PJRT_Error *(*pjrt_enter_plugin)(void *args, int entry)
    const pjrt_entry pjrt_entries[192]
    const pjrt_entry pjrt_plugin_entries[8192]
    const int PJRT_NUM_ENTRIES
    const int PJRT_NUM_PLUGINS
    const int PJRT_NUM_PLUGIN_ENTRIES

cdef implementation_t _implementations[192]
cdef plugin_implementation_t _plugin_implementations[8]
cdef bint _is_quiet[192]
cdef bint _is_notice[192]
cdef int _num_entries = 0
cdef list _plugins = []
cdef list _free_plugins = []


cdef void *entry(implementation_t implementation) except NULL:
    """Make a function for the table that calls the implementation.

    Each implementation takes one of a fixed number of entries, for good. So this is called once for each, for what all
    exported plugins share, and never again for the next plugin.
    """
    global _num_entries
    if _num_entries == PJRT_NUM_ENTRIES:
        raise InternalError(f"the table needs more than the {PJRT_NUM_ENTRIES} entries that pjrt_support/entries.h makes")
    _implementations[_num_entries] = implementation
    _num_entries += 1
    return <void *>pjrt_entries[_num_entries - 1]


cdef int define_plugin_entry(int number, plugin_implementation_t implementation) except -1:
    """Set what an entry does of which each exported plugin has its own."""
    if not 0 <= number < PJRT_NUM_PLUGIN_ENTRIES:
        raise InternalError(f"a plugin has {PJRT_NUM_PLUGIN_ENTRIES} entries of its own, found the number {number}")
    _plugin_implementations[number] = implementation
    return 0


cdef int add_plugin(plugin) except -1:
    """Give an exported plugin a number; with its table it lives as long as the process, as the ABI says of tables."""
    if _free_plugins:
        number = _free_plugins.pop()
        _plugins[number] = plugin
        return number
    if len(_plugins) == PJRT_NUM_PLUGINS:
        raise ResourceExhaustedError(
            f"a process can export {PJRT_NUM_PLUGINS} plugins, and this one has; a plugin makes any number of clients, so "
            "export it once and use what pjrt.export gave again"
        )
    _plugins.append(plugin)
    return len(_plugins) - 1


cdef int remove_plugin(int number) except -1:
    """Take back the number of a plugin whose table could not be made, and which nobody has."""
    _plugins[number] = None
    _free_plugins.append(number)
    return 0


cdef void *quiet_entry(implementation_t implementation) except NULL:
    """An entry that never fails, for what gives things up: frameworks end the process where that fails.

    An exception is logged; once the interpreter has begun to end there is nothing left to give up.
    """
    function = entry(implementation)
    _is_quiet[_num_entries - 1] = True
    return function


cdef void *notice_entry(implementation_t implementation) except NULL:
    """An entry by which a framework tells something from a thread of its own, and ends the process where that fails:
    once the interpreter has begun to end there is nobody left to be told, which is no failure.
    """
    function = entry(implementation)
    _is_notice[_num_entries - 1] = True
    return function


cdef void *plugin_entry(int plugin, int number) noexcept:
    """A function for the table of one exported plugin."""
    return <void *>pjrt_plugin_entries[plugin * PJRT_NUM_PLUGIN_ENTRIES + number]


cdef PJRT_Error *_enter(void *args, int number) noexcept nogil:
    cdef PJRT_Error *error
    if not gate_enter():
        return NULL if _is_quiet[number] or _is_notice[number] else _closed()
    error = _run(number, args)
    gate_leave()
    return error


cdef PJRT_Error *_enter_plugin(void *args, int number) noexcept nogil:
    cdef PJRT_Error *error
    if not gate_enter():
        return _closed()
    error = _run_plugin(number // PJRT_NUM_PLUGIN_ENTRIES, number % PJRT_NUM_PLUGIN_ENTRIES, args)
    gate_leave()
    return error


cdef PJRT_Error *_closed() noexcept nogil:
    return pjrt_error_of_text(
        PJRT_Error_Code_FAILED_PRECONDITION, b"the Python interpreter that this device runs in is ending"
    )


cdef PJRT_Error *_run(int number, void *args) noexcept with gil:
    try:
        _implementations[number](args)
    except KeyboardInterrupt as error:
        return _interrupted(error)
    except BaseException as error:
        if not _is_quiet[number]:
            return native_error(error)
        _log.exception("a device of an exported plugin failed while it was given up")
    return NULL


cdef PJRT_Error *_run_plugin(int plugin, int number, void *args) noexcept with gil:
    try:
        _plugin_implementations[number](_plugins[plugin], args)
    except KeyboardInterrupt as error:
        return _interrupted(error)
    except BaseException as error:
        return native_error(error)
    return NULL


cdef PJRT_Error *_interrupted(error) noexcept:
    """Ctrl-C in a device's code: an error for the framework, and the exception again once it is back in Python.

    So a framework that tries something else instead is interrupted there, too.
    """
    cdef PJRT_Error *made = native_error(error)
    cdef bint is_main = False
    try:
        is_main = threading.current_thread() is threading.main_thread()
    except BaseException:
        is_main = True  # only there does another Ctrl-C arrive
    if is_main:
        PyErr_SetInterrupt()  # last: whatever runs in Python from here on meets it
    return made


pjrt_enter = _enter
pjrt_enter_plugin = _enter_plugin


cdef PJRT_Error *native_error(error) noexcept:
    """Any exception as an error for the framework: code, message and payloads."""
    cdef PJRT_Error *made
    cdef bytes message, name, data
    try:
        wrapped = from_author(error)
        message = wrapped.message.encode("utf-8", "replace")
        made = pjrt_error_new(<PJRT_Error_Code><int>wrapped.code, message, len(message))
        for key, value in wrapped.payloads.items():
            name, data = key.encode("utf-8", "replace"), bytes(value)
            pjrt_error_add_payload(made, name, len(name), data, len(data))
        return made
    except BaseException:
        return pjrt_error_of_text(PJRT_Error_Code_INTERNAL, b"a device raised an exception that itself could not be read")


cdef object python_error(PJRT_Error_Code code, const char *message, size_t size):
    """An error that the framework describes by code and message."""
    text = message[:size].decode("utf-8", "replace") if message != NULL else ""
    return PjrtError.of(<int>code, text)


cdef object take_error(PJRT_Error *error):
    """One of our own errors, made by a callback, as an exception; frees it."""
    cdef const char *message
    cdef size_t size
    pjrt_error_read(error, &message, &size)
    made = python_error(pjrt_error_code(error), message, size)
    pjrt_error_release(error)
    return made


cdef bint has_field(void *args, void *field, size_t size) noexcept nogil:
    """Whether the caller's struct, whose first member is its size, reaches to the end of a field."""
    return <size_t>(<char *>field - <char *>args) + size <= (<size_t *>args)[0]


cdef void put(void *table, size_t slot, void *function) noexcept nogil:
    """Sets a function of a table by its offset."""
    (<void **>(<char *>table + slot))[0] = function


cdef void *keep(thing) noexcept:
    """A reference to an object for the framework to hold, which it gives back with ``drop``."""
    Py_INCREF(thing)
    return <void *>thing


cdef void drop(void *kept) noexcept nogil:
    """Gives back a reference that the framework held; fits as a deleter. Once Python is ending, nothing is left to free."""
    if kept != NULL and gate_enter():
        _decref(kept)
        gate_leave()


cdef void _decref(void *kept) noexcept with gil:
    Py_DECREF(<object>kept)
