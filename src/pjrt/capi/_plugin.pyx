"""Plugins: vendors' libraries, and the table of functions that each returns."""

import os
import threading
from pathlib import Path

cimport cython

from pjrt.capi._api cimport Api, read_named_values, start
from pjrt.capi._client cimport create_client, create_topology, deserialize_topology
from pjrt.abi.generated.declarations cimport *
from pjrt.capi._scope cimport Scope

from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError, PjrtError, UnimplementedError
from pjrt.api.plugin import Plugin
from pjrt.capi.reports import plugin_capabilities
from pjrt.capi._scope import documented
from pjrt.capi.environment import with_layers
from pjrt.capi.library_files import check_library_file, open_plugin_library
from pjrt.system import is_noexec, library_symbol

cdef extern from "Python.h":
    void *PyCapsule_GetPointer(object capsule, const char *name) except NULL
    object PyCapsule_New(void *pointer, const char *name, void *destructor)

ctypedef const PJRT_Api *(*get_api_t)() noexcept nogil

_by_table = {}
_lock = threading.Lock()


cdef class PluginCore:
    """A plugin's table, and the facts about the plugin that never change."""

    cdef Api api
    cdef Scope scope
    cdef str _path
    cdef readonly str name
    cdef dict _attributes

    @property
    def attributes(self):
        with cython.critical_section(self):  # another thread may make a client, and read them again
            return self._attributes

    @property
    def api_version(self):
        return self.api.major_version, self.api.minor_version

    @property
    def path(self):
        """The path of the library; for a plugin from a capsule, its name."""
        return self._path

    @property
    def address(self):
        """The address of the ``PJRT_Api``."""
        return <size_t>self.api.table

    @property
    def extensions(self):
        return self.api.extensions

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
        """Read the attributes, and return them. A plugin in Python knows those of its clients once it has made one."""
        cdef PJRT_Plugin_Attributes_Args attributes
        start(&attributes, PJRT_Plugin_Attributes_Args_STRUCT_SIZE)
        try:
            self.api.call(SLOT_PJRT_Plugin_Attributes, &attributes)  # Plugin.attributes
            values = read_named_values(attributes.attributes, attributes.num_attributes, "the attributes of a plugin")
        except UnimplementedError:
            values = {}
        with cython.critical_section(self):
            self._attributes = values
        return values

    def client(self, *, key_value_store=None, **options):
        """Create a client (``PJRT_Client_Create``).

        Args:
            key_value_store: a ``pjrt.KeyValueStore`` through which clients of several processes find each other.
            options: the plugin's own options; each value is a str, int, float, bool or a list of int.
        """
        try:
            return create_client(self.api, self._read, key_value_store, options)
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
        """Return a runtime's ABI version, from what ``to_proto`` returned (``PJRT_RuntimeAbiVersion_FromProto``)."""
        from pjrt.capi._extensions import runtime_version_from_proto

        return runtime_version_from_proto(self.scope, serialized)

    def executable_abi_version(self, serialized):
        """Return an executable's ABI version, from what ``to_proto`` returned
        (``PJRT_ExecutableAbiVersion_FromProto``).
        """
        from pjrt.capi._extensions import executable_version_from_proto

        return executable_version_from_proto(self.scope, serialized)

    def tpu_executable(self, serialized):
        """Return a serialized TPU executable as an object that reads it (TpuExecutable extension).

        Args:
            serialized: the bytes of ``Executable.serialize``, or of the last phase of a ``PhaseCompiler``.
        """
        from pjrt.capi._extensions import tpu_executable

        return tpu_executable(self.scope, serialized)

    def tpu_compilation_environments(self, serialized=b""):
        """Return a serialized ``xla.CompilationEnvironmentsProto`` with the TPU compiler's settings in it
        (``PJRT_TpuExecutable_SetTpuCompilationEnv``).

        Args:
            serialized: environments to start from; settings that are missing there have the compiler's default.
        """
        from pjrt.capi._extensions import compilation_environments

        return compilation_environments(self.scope, serialized)

    def tpu_compiler_setting(self, name, environments=b""):
        """Return a setting of the TPU compiler as text (``PJRT_TpuExecutable_GetTpuCompilationEnvFieldAsString``).

        Args:
            name: the setting, such as ``xla_tpu_enable_latency_hiding_scheduler``.
            environments: a serialized ``xla.CompilationEnvironmentsProto``; settings that are missing there have the
                compiler's default.
        """
        from pjrt.capi._extensions import compiler_setting

        return compiler_setting(self.scope, name, environments)

    def profiler(self, options=b""):
        from pjrt.capi._extensions import new_profiler

        return new_profiler(self.scope, options)

    def compile_triton(self, module, arch_name, *, num_warps, num_ctas, num_stages):
        from pjrt.capi._extensions import compile_triton

        return compile_triton(self.scope, module, arch_name, num_warps, num_ctas, num_stages)

    def register_ffi_handler(self, name, handler, *, platform, traits=0):
        from pjrt.capi._extensions import register_handler

        register_handler(self.scope, platform, name, handler, traits)


@documented
class LoadedPlugin(PluginCore, Plugin):
    """A plugin from a shared library, or from a capsule that holds its table."""

    @property
    def capabilities(self):
        return plugin_capabilities((<PluginCore>self).api, self.attributes)


def _located(error, path, what, advice):
    """Return the error of a plugin with the path of its library and the next step."""
    return PjrtError.of(error.code, f"{path}: {what}: {error.message}; {advice}", payloads=error.payloads)


def load_plugin(path):
    """Load a plugin from its shared library, with the layers of ``PJRT_LAYERS``.

    The library stays loaded until the process ends. Loading it again returns the same plugin; if the file has changed
    since, the new library is loaded beside the old one.

    Args:
        path: the path of the library, such as ``libtpu.so``.

    Raises:
        NotFoundError: the file does not exist.
        DataLossError: the file is cut off.
        FailedPreconditionError: the file is no library, no plugin, or a plugin that this package cannot speak to.
        PjrtError: the plugin failed to initialize.
    """
    table, text, name = open_table(path)
    return plugin_at(with_layers(table, text), text, name)


def open_table(path):
    """Open a plugin's library; return the address of its table, its absolute path, and a name for the plugin.

    Raises:
        NotFoundError: the file does not exist.
        DataLossError: the file is cut off.
        FailedPreconditionError: the file is no library, no plugin, or a plugin that this package cannot speak to.
    """
    library = Path(os.fspath(path)).expanduser()
    if not library.exists():
        raise NotFoundError(f"{library}: there is no such file; give the path of the plugin's shared library")
    check_library_file(library)
    text = str(library.resolve())
    try:
        handle = open_plugin_library(text)
    except OSError as error:
        advice = "install what it names as missing, or check that it is a shared library for this machine"
        if is_noexec(library.resolve().parent):
            advice = "its folder is on a file system mounted noexec: move it to another; TMPDIR names that of temporary files"
        raise FailedPreconditionError(f"{text}: the library could not be opened: {error}; {advice}") from error
    table = _table_in(handle, text)
    Api.of(<const PJRT_Api *><size_t>table, text, None)  # layers and replays read the table before a plugin is made of it
    return table, text, library.stem


def _table_in(handle, path):
    """Return the address of the table of an opened library."""
    cdef get_api_t get_api
    cdef const PJRT_Api *table
    get_api = <get_api_t><size_t>(library_symbol(handle, "GetPjrtApi") or 0)
    if get_api == NULL:
        raise FailedPreconditionError(
            f"{path}: the library has no function GetPjrtApi, so it is no PJRT plugin; give the path of one"
        )
    with nogil:
        table = get_api()
    return <size_t>table


def capsule_of(size_t table):
    """Return a table as a capsule, as JAX's ``register_plugin`` takes it.

    Args:
        table: the address of a ``PJRT_Api`` that lives as long as the process.
    """
    return PyCapsule_New(<void *>table, b"pjrt_c_api", NULL)


def load_capsule(capsule, name="plugin"):
    """Return the plugin whose table a capsule holds, such as a device of this process that was exported.

    It gets the layers of ``PJRT_LAYERS``.

    Args:
        capsule: a capsule with the name ``pjrt_c_api``; it is kept alive, because the table must be.
        name: a name for the plugin.

    Raises:
        InvalidArgumentError: the object is no such capsule.
        PjrtError: the plugin fails as ``load_plugin`` describes.
    """
    cdef void *table
    try:
        table = PyCapsule_GetPointer(capsule, b"pjrt_c_api")
    except (ValueError, AttributeError) as error:
        raise InvalidArgumentError(f"expected a capsule named 'pjrt_c_api', found {capsule!r}") from error
    return plugin_at(with_layers(<size_t>table, name), f"<{name}>", name, capsule)


def plugin_at(size_t table, path, name, owner=None):
    """Return the plugin whose table is at an address: for the same address the same one.

    Args:
        table: the address of the ``PJRT_Api``.
        path: the path of its library, or what stands for it in messages.
        name: a name for the plugin.
        owner: what keeps the table alive.

    Raises:
        PjrtError: the plugin fails as ``load_plugin`` describes.
    """
    cdef PluginCore core
    with _lock:
        plugin = _by_table.get(table)
        if plugin is None:
            plugin = LoadedPlugin()
            core = <PluginCore>plugin
            core.api = Api.of(<const PJRT_Api *>table, path, owner)
            core.scope = Scope.__new__(Scope)
            core.scope.api = core.api
            core._path = path
            core.name = name
            core._initialize()
            core._read()
            _by_table[table] = plugin
        return plugin
