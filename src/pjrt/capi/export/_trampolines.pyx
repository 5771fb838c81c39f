"""Trampolines: the way from the table's functions into Python, and of errors out of it.

A function that needs Python has an *implementation*: it takes the argument struct, returns nothing, and may raise. The
function in the table is a trampoline: it passes the gate, takes the GIL, calls the implementation, and turns any
exception into a ``PJRT_Error``. So no exception escapes into the framework, and once the interpreter has begun to end
the framework gets an error, because Python cannot be called any more.
"""

from cpython.ref cimport Py_DECREF, Py_INCREF

from pjrt.capi._api cimport gate_enter, gate_leave
from pjrt.abi.generated.declarations cimport *
from pjrt.capi._api cimport read_named_values

import logging
import threading

from pjrt.api.errors import InternalError, PjrtError, ResourceExhaustedError, from_author

_log = logging.getLogger("pjrt")

cdef extern from "Python.h":
    void PyErr_SetInterrupt()

cdef extern from "pjrt_support/error.h" nogil:
    void pjrt_error_read(const PJRT_Error *error, const char **message, size_t *size)
    PJRT_Error_Code pjrt_error_code(const PJRT_Error *error)
    void pjrt_error_add_payload(PJRT_Error *error, const char *key, size_t key_size, const char *value, size_t size)

cdef extern from "pjrt_support/trampolines.h" nogil:
    ctypedef PJRT_Error *(*pjrt_trampoline)(void *args)
    PJRT_Error *(*pjrt_enter)(void *args, int trampoline)
    PJRT_Error *(*pjrt_enter_plugin)(void *args, int trampoline)
    const pjrt_trampoline pjrt_trampolines[192]
    const pjrt_trampoline pjrt_plugin_trampolines[8192]
    const int PJRT_NUM_TRAMPOLINES
    const int PJRT_NUM_PLUGINS
    const int PJRT_NUM_PLUGIN_TRAMPOLINES

cdef extern from "generated/argument_sizes.h" nogil:
    ctypedef struct pjrt_argument_size:
        unsigned table
        unsigned offset
        size_t size
        const char *name
    const pjrt_argument_size pjrt_argument_sizes[512]
    const int PJRT_NUM_ARGUMENT_SIZES

cdef struct _Arguments:
    size_t size  # the fewest bytes that callers stamp into the struct
    const char *name

cdef implementation_t _implementations[192]
cdef _Arguments _arguments[192]
cdef plugin_implementation_t _plugin_implementations[8]
cdef _Arguments _plugin_arguments[8]
cdef bint _is_quiet[192]
cdef bint _is_notice[192]
cdef int _num_trampolines = 0
cdef list _plugins = []
cdef list _free_plugins = []
_lock = threading.Lock()  # of the two lists


cdef void *trampoline(implementation_t implementation) except NULL:
    """Return a function for the table that calls the implementation.

    Each implementation takes one of a fixed number of trampolines, for good. So this is called once for each
    implementation, since all exported plugins share them, and never again for the next plugin.
    """
    global _num_trampolines
    if _num_trampolines == PJRT_NUM_TRAMPOLINES:
        raise InternalError(f"expected at most {PJRT_NUM_TRAMPOLINES} implementations: trampolines.h makes no more")
    _implementations[_num_trampolines] = implementation
    _num_trampolines += 1
    return <void *>pjrt_trampolines[_num_trampolines - 1]


cdef int define_plugin_trampoline(
    int number, plugin_implementation_t implementation, size_t size, const char *name
) except -1:
    """Set the implementation of a trampoline of which each exported plugin has its own.

    Args:
        number: which of a plugin's own trampolines.
        implementation: what it calls.
        size: the fewest bytes that callers stamp into the argument struct.
        name: the struct's name.
    """
    if not 0 <= number < PJRT_NUM_PLUGIN_TRAMPOLINES:
        raise InternalError(f"expected a trampoline number below {PJRT_NUM_PLUGIN_TRAMPOLINES}, found {number}")
    _plugin_implementations[number] = implementation
    _plugin_arguments[number] = _Arguments(size, name)


cdef void declare_sizes(const void *table, unsigned number) noexcept nogil:
    """Declare the argument structs of all trampolines in a table, so that each refuses one that is too short.

    Args:
        table: a filled ``PJRT_Api``, or the struct of an extension.
        number: 0 for ``PJRT_Api``; for an extension, its number plus one.
    """
    cdef const pjrt_argument_size *each
    cdef int i
    for i in range(PJRT_NUM_ARGUMENT_SIZES):
        each = &pjrt_argument_sizes[i]
        if each.table == number:
            declare_size((<const void *const *>(<const char *>table + each.offset))[0], each.size, each.name)


cdef void declare_size(const void *function, size_t size, const char *name) noexcept nogil:
    """Declare the argument struct of a function, if that is a trampoline: other functions check their arguments."""
    cdef int number
    for number in range(_num_trampolines):
        if <const void *>pjrt_trampolines[number] == function:
            _arguments[number] = _Arguments(size, name)
            return


cdef int add_plugin(plugin) except -1:
    """Return a new number for an exported plugin, which lives as long as the process, as the ABI wants of tables."""
    with _lock:
        if _free_plugins:
            number = _free_plugins.pop()
            _plugins[number] = plugin
            return number
        if len(_plugins) == PJRT_NUM_PLUGINS:
            raise ResourceExhaustedError(
                f"a process can export {PJRT_NUM_PLUGINS} plugins, and this one has done so; a plugin makes any number "
                "of clients: export it once and keep the result of pjrt.export"
            )
        _plugins.append(plugin)
        return len(_plugins) - 1


cdef int remove_plugin(int number) except -1:
    """Take back the number of a plugin whose table could not be made."""
    with _lock:
        _plugins[number] = None
        _free_plugins.append(number)


cdef void *quiet_trampoline(implementation_t implementation) except NULL:
    """Return a trampoline that never fails, for functions that destroy or delete.

    Frameworks end the process if such a function fails. An exception is logged. Once the interpreter has begun to end,
    the trampoline does nothing.
    """
    function = trampoline(implementation)
    _is_quiet[_num_trampolines - 1] = True
    return function


cdef void *notice_trampoline(implementation_t implementation) except NULL:
    """Return a trampoline that does nothing, and succeeds, once the interpreter has begun to end.

    It is for functions by which a framework notifies a device from a thread of its own: frameworks end the process if
    one fails.
    """
    function = trampoline(implementation)
    _is_notice[_num_trampolines - 1] = True
    return function


cdef void *plugin_trampoline(int plugin, int number) noexcept:
    """Return a function for the table of one exported plugin."""
    return <void *>pjrt_plugin_trampolines[plugin * PJRT_NUM_PLUGIN_TRAMPOLINES + number]


cdef PJRT_Error *_enter(void *args, int number) noexcept nogil:
    cdef PJRT_Error *error = pjrt_check_size(args, _arguments[number].size, _arguments[number].name)
    if error != NULL:
        return error
    if not gate_enter():
        return NULL if _is_quiet[number] or _is_notice[number] else _closed()
    error = _run(number, args)
    gate_leave()
    return error


cdef PJRT_Error *_enter_plugin(void *args, int number) noexcept nogil:
    cdef int plugin = number // PJRT_NUM_PLUGIN_TRAMPOLINES
    number = number % PJRT_NUM_PLUGIN_TRAMPOLINES
    cdef PJRT_Error *error = pjrt_check_size(args, _plugin_arguments[number].size, _plugin_arguments[number].name)
    if error != NULL:
        return error
    if not gate_enter():
        return _closed()
    error = _run_plugin(plugin, number, args)
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
        _log.exception("a device of an exported plugin failed to destroy or delete an object")
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
    """Return the error for Ctrl-C in a device's code, and raise ``KeyboardInterrupt`` again once Python runs.

    So a framework that handles the error and goes on is interrupted, too.
    """
    cdef PJRT_Error *made = native_error(error)
    cdef bint is_main = False
    try:
        is_main = threading.current_thread() is threading.main_thread()
    except BaseException:
        is_main = True  # another Ctrl-C has interrupted the line above, and only the main thread gets those
    if is_main:
        PyErr_SetInterrupt()  # last: any Python code that runs after it would be interrupted
    return made


pjrt_enter = _enter
pjrt_enter_plugin = _enter_plugin


cdef PJRT_Error *native_error(error) noexcept:
    """Return an exception as an error for the framework: code, message and payloads."""
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
        return pjrt_error_of_text(PJRT_Error_Code_INTERNAL, b"a device raised an exception that could not be read")


cdef object python_error(PJRT_Error_Code code, const char *message, size_t size):
    """Return an error that the framework describes by code and message."""
    text = message[:size].decode("utf-8", "replace") if message != NULL else ""
    return PjrtError.of(<int>code, text)


cdef object with_payloads(error, const PJRT_NamedValue *payloads, size_t number):
    """Return an error with the payloads that the framework adds to it."""
    if not number:
        return error
    values = read_named_values(payloads, number, "payloads")
    payloads_by_name = {name: v if isinstance(v, bytes) else str(v).encode() for name, v in values.items()}
    return PjrtError.of(int(error.code), error.message, payloads_by_name)


cdef object take_error(PJRT_Error *error):
    """Return an error that a callback of the framework made with our functions as an exception, and free it."""
    cdef const char *message
    cdef size_t size
    pjrt_error_read(error, &message, &size)
    made = python_error(pjrt_error_code(error), message, size)
    pjrt_error_release(error)
    return made


cdef bint has_field(void *args, void *field, size_t size) noexcept nogil:
    """Whether the caller's struct, whose first member is its size, reaches to the end of a field."""
    return <size_t>(<char *>field - <char *>args) + size <= (<size_t *>args)[0]


cdef void put(void *slot, void *function) noexcept nogil:
    """Set a slot of a table, a function pointer of any type, to a trampoline."""
    (<void **>slot)[0] = function


cdef void *keep(thing) noexcept:
    """Return a new reference to an object, for the framework to hold and to give back with ``drop``."""
    Py_INCREF(thing)
    return <void *>thing


cdef void drop(void *kept) noexcept nogil:
    """Release a reference that the framework held; fits as a deleter. Do nothing once the interpreter is ending."""
    if kept != NULL and gate_enter():
        _decref(kept)
        gate_leave()


cdef void _decref(void *kept) noexcept with gil:
    Py_DECREF(<object>kept)
