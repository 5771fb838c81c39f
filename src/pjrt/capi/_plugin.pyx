"""Plugins: a vendor's library, found, opened and asked for its table."""

from libc.stdint cimport int64_t

from pjrt.capi._alive cimport alive, take_down
from pjrt.capi._api cimport Api, start
from pjrt.capi._client cimport create_client
from pjrt.capi._gen_abi cimport *
from pjrt.capi._scope cimport Scope
from pjrt.capi._topology cimport create_topology, deserialize_topology
from pjrt.capi._values cimport read_named_values

import gc
import os
import threading
import time
from pathlib import Path

from pjrt.api.counting import counted
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError, PjrtError, UnimplementedError
from pjrt.api.plugin import Plugin
from pjrt.capi._capabilities import of_plugin
from pjrt.capi._documented import documented
from pjrt.capi._gen_functions import EXTENSIONS
from pjrt.capi._library_file import check_library_file
from pjrt.capi._library_life import Library
from pjrt.system import close_library, library_symbol

cdef extern from "Python.h":
    void *PyCapsule_GetPointer(object capsule, const char *name) except NULL

ctypedef const PJRT_Api *(*get_api_t)() noexcept nogil

_by_table = {}
_initialized = set()  # tables of plugins that were unloaded and whose libraries stayed in memory all the same
_lock = threading.Lock()

_COLLECTIONS = 3
_PAUSE_SECONDS = 0.05


cdef class PluginCore:
    """A plugin's table with what never changes about it."""

    cdef Api api
    cdef Scope scope
    cdef object library
    cdef str _path
    cdef readonly str name
    cdef readonly dict attributes

    @property
    def api_version(self):
        return self.api.major_version, self.api.minor_version

    @property
    def path(self):
        """The path of the library; of a plugin that came from a capsule, its name."""
        return self._path

    @property
    def extensions(self):
        """The names of the plugin's extensions in the order of its chain; one of an unknown type goes by its number."""
        known = dict(enumerate(EXTENSIONS))
        return tuple([known.get(kind, f"extension {kind}") for kind in self.api.extension_types])

    def _initialize(self):
        cdef PJRT_Plugin_Initialize_Args initialize
        start(&initialize, PJRT_Plugin_Initialize_Args_STRUCT_SIZE)
        try:
            self.api.call(SLOT_PJRT_Plugin_Initialize, &initialize)  # load_plugin
        except PjrtError as error:
            raise _located(
                error,
                self.path,
                "the plugin failed to initialize",
                "see its documentation for the hardware, drivers and settings it needs",
            ) from None

    def _read(self):
        cdef PJRT_Plugin_Attributes_Args attributes
        start(&attributes, PJRT_Plugin_Attributes_Args_STRUCT_SIZE)
        try:
            self.api.call(SLOT_PJRT_Plugin_Attributes, &attributes)  # Plugin.attributes
        except UnimplementedError:
            self.attributes = {}
            return
        self.attributes = read_named_values(
            attributes.attributes, attributes.num_attributes, "the attributes of a plugin"
        )

    def client(self, *, key_value_store=None, **options):
        """A new client (``PJRT_Client_Create``).

        Args:
            key_value_store: a ``pjrt.KeyValueStore`` through which clients of several processes find each other.
            options: the plugin's own options, by the type of the value: str, int, float, bool or a list of int.
        """
        try:
            return create_client(self.api, self.attributes, key_value_store, options)
        except InvalidArgumentError:
            raise
        except PjrtError as error:
            raise _located(
                error,
                self.path,
                "no client could be made",
                "check that the device and its driver are there, and the options "
                f"({', '.join(options) or 'none given'})",
            ) from None

    def topology(self, name="", **options):
        return create_topology(self.scope, name, options, self.attributes)

    def deserialize_topology(self, serialized):
        return deserialize_topology(self.scope, serialized, self.attributes)

    def runtime_abi_version(self, serialized):
        """The runtime's ABI version that ``RuntimeAbiVersion.to_proto`` gave (``PJRT_RuntimeAbiVersion_FromProto``)."""
        from pjrt.capi._abi_version import runtime_version_from_proto

        return runtime_version_from_proto(self.scope, serialized)

    def executable_abi_version(self, serialized):
        """The executable's ABI version that ``ExecutableAbiVersion.to_proto`` gave
        (``PJRT_ExecutableAbiVersion_FromProto``).
        """
        from pjrt.capi._abi_version import executable_version_from_proto

        return executable_version_from_proto(self.scope, serialized)

    def profiler(self, options=b""):
        from pjrt.capi._profiler import new_profiler

        return new_profiler(self.scope, options)

    def compile_triton(self, module, arch_name, *, num_warps, num_ctas, num_stages):
        from pjrt.capi._triton import compile_triton

        return compile_triton(self.scope, module, arch_name, num_warps, num_ctas, num_stages)

    # Its end.

    @property
    def is_loaded(self):
        """Whether it can be used: ``unload`` was not called."""
        return self.api.table != NULL

    @property
    def has_changed(self):
        """Whether the library's file is another one than when it was loaded, or is gone."""
        return self.library is not None and self.library.has_changed

    def alive(self):
        """What of the plugin is alive: kinds of things, such as ``client`` and ``buffer``, and how many there are."""
        return alive(self.api)

    def unload(self):
        """Ends the plugin, and takes its library out of the process, if that can be.

        It cannot where a thread of the plugin's is inside of the library, the library is marked to stay, or it has
        opened others, which may call it; then it stays in memory, unused. When it is loaded again after its file has
        changed, the new code runs in any case.

        Returns:
            Whether the library has left the process.

        Raises:
            FailedPreconditionError: something of the plugin is alive; the message says what. Or it was unloaded
                already, or came from a capsule, whose owner alone can unload it.
        """
        cdef size_t table
        if self.library is None:
            raise FailedPreconditionError(
                f"{self.path}: the plugin came from a capsule, not from a library: whoever made the capsule keeps it"
            )
        _collect(self.api)
        with _lock:
            if self.api.table == NULL:
                raise self.api.unloaded()
            table = <size_t>self.api.table
            if take_down(self.api):
                raise FailedPreconditionError(
                    f"{self.path}: the plugin cannot be unloaded while something of it is alive: "
                    f"{counted(alive(self.api))}; close its clients and drop what was made from it"
                )
            self.scope.closed = True
            del _by_table[table]
            gone = self.library.close()
            if not gone:
                _initialized.add(table)
        return gone


@documented
class LoadedPlugin(PluginCore, Plugin):
    """A plugin that was loaded from a library, or from a capsule that holds its table."""

    @property
    def capabilities(self):
        return of_plugin((<PluginCore>self).api, self.attributes)


def _collect(Api api):
    """Finds what of a plugin is garbage. A thread of the plugin's may be about to drop more: an event that is over."""
    for _ in range(_COLLECTIONS):
        if not alive(api):
            return
        gc.collect()
        if alive(api):
            time.sleep(_PAUSE_SECONDS)


def _located(error, path, what, advice):
    """The error of a plugin with the path of its library and the next step."""
    return PjrtError.of(error.code, f"{path}: {what}: {error.message}; {advice}", payloads=error.payloads)


def load_plugin(path):
    """Loads a plugin from its shared library.

    The library stays loaded until ``plugin.unload()`` or until the process ends. Loading it again gives the same plugin.

    Args:
        path: the path of the library, such as ``libtpu.so``.

    Raises:
        NotFoundError: there is no such file.
        DataLossError: the file is cut off.
        FailedPreconditionError: it is no library, no plugin, or one that this package cannot speak to.
        PjrtError: the plugin failed to initialize.
    """
    found = Path(os.fspath(path)).expanduser()
    if not found.exists():
        raise NotFoundError(f"{found}: there is no such file; give the path of the plugin's shared library")
    check_library_file(found)
    text = str(found.resolve())
    try:
        library = Library.open(text)
    except OSError as error:
        raise FailedPreconditionError(
            f"{text}: the library could not be opened: {error}; install what it names as missing, or check that it is "
            "a shared library for this machine"
        ) from error
    try:
        plugin = _in_library(library, found.stem)
        library.note_opened()
        return plugin
    except BaseException:
        library.leave()
        raise


def _in_library(library, name):
    """The plugin in an opened library."""
    cdef get_api_t get_api
    cdef const PJRT_Api *table
    text = library.path
    get_api = <get_api_t><size_t>(library_symbol(library.handle, "GetPjrtApi") or 0)
    if get_api == NULL:
        raise FailedPreconditionError(
            f"{text}: the library has no function GetPjrtApi, so it is no PJRT plugin; give the path of one"
        )
    with nogil:
        table = get_api()
    plugin = _plugin_of(<size_t>table, text, name, library=library)
    if (<PluginCore>plugin).library is not library:
        close_library(library.handle)  # it was loaded before: that was one opening too many
    return plugin


def load_capsule(capsule, name="plugin"):
    """The plugin whose table a capsule named ``pjrt_c_api`` holds, such as an exported one in the same process.

    Args:
        capsule: the capsule; it is kept alive, for the table must be.
        name: what to call the plugin.

    Raises:
        InvalidArgumentError: it is no such capsule.
        PjrtError: as ``load_plugin``.
    """
    cdef void *table
    try:
        table = PyCapsule_GetPointer(capsule, b"pjrt_c_api")
    except (ValueError, AttributeError) as error:
        raise InvalidArgumentError(f"expected a capsule named 'pjrt_c_api', found {capsule!r}") from error
    return _plugin_of(<size_t>table, f"<{name}>", name, capsule)


def _plugin_of(size_t table, path, name, owner=None, library=None):
    cdef PluginCore core
    with _lock:
        plugin = _by_table.get(table)
        if plugin is None:
            plugin = LoadedPlugin()
            core = <PluginCore>plugin
            core.api = Api.of(<const PJRT_Api *>table, path, owner)
            core.scope = Scope.__new__(Scope)
            core.scope.attach(core.api)
            core.library = library
            core._path = path
            core.name = name
            if table not in _initialized:
                core._initialize()
            core._read()
            _initialized.discard(table)
            _by_table[table] = plugin
        return plugin
