"""Plugins: a vendor's library, found, opened and asked for its table."""

from libc.stdint cimport int64_t

from pjrt.capi._api cimport Api, start
from pjrt.capi._client cimport create_client
from pjrt.capi._gen_abi cimport *
from pjrt.capi._scope cimport Scope
from pjrt.capi._topology cimport create_topology, deserialize_topology
from pjrt.capi._values cimport read_named_values

import os
import threading
from pathlib import Path

from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError, PjrtError, UnimplementedError
from pjrt.api.plugin import Plugin
from pjrt.capi._capabilities import of_plugin
from pjrt.capi._documented import documented
from pjrt.capi._library_file import check_library_file
from pjrt.capi._plugin_library import open_plugin_library
from pjrt.system import library_symbol

cdef extern from "Python.h":
    void *PyCapsule_GetPointer(object capsule, const char *name) except NULL

ctypedef const PJRT_Api *(*get_api_t)() noexcept nogil

_by_table = {}
_lock = threading.Lock()


cdef class PluginCore:
    """A plugin's table with what never changes about it."""

    cdef Api api
    cdef Scope scope
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
            self.attributes = read_named_values(
                attributes.attributes, attributes.num_attributes, "the attributes of a plugin"
            )
        except UnimplementedError:
            self.attributes = {}
        return self.attributes

    def client(self, *, key_value_store=None, **options):
        """A new client (``PJRT_Client_Create``).

        Args:
            key_value_store: a ``pjrt.KeyValueStore`` through which clients of several processes find each other.
            options: the plugin's own options, by the type of the value: str, int, float, bool or a list of int.
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
        """The runtime's ABI version that ``RuntimeAbiVersion.to_proto`` gave (``PJRT_RuntimeAbiVersion_FromProto``)."""
        from pjrt.capi._abi_version import runtime_version_from_proto

        return runtime_version_from_proto(self.scope, serialized)

    def executable_abi_version(self, serialized):
        """The executable's ABI version that ``ExecutableAbiVersion.to_proto`` gave
        (``PJRT_ExecutableAbiVersion_FromProto``).
        """
        from pjrt.capi._abi_version import executable_version_from_proto

        return executable_version_from_proto(self.scope, serialized)

    def tpu_executable(self, serialized):
        """Return what a serialized TPU executable holds (TpuExecutable extension).

        Args:
            serialized: what ``Executable.serialize`` gave, or the last phase of a ``PhaseCompiler``.
        """
        from pjrt.capi._tpu_executable import tpu_executable

        return tpu_executable(self.scope, serialized)

    def tpu_compilation_environments(self, serialized=b""):
        """Return a serialized ``xla.CompilationEnvironmentsProto`` with the TPU compiler's settings in it
        (``PJRT_TpuExecutable_SetTpuCompilationEnv``).

        Args:
            serialized: environments to start from; what they do not say is the compiler's default.
        """
        from pjrt.capi._tpu_executable import compilation_environments

        return compilation_environments(self.scope, serialized)

    def tpu_compiler_setting(self, name, environments=b""):
        """Return a setting of the TPU compiler as text (``PJRT_TpuExecutable_GetTpuCompilationEnvFieldAsString``).

        Args:
            name: the setting, such as ``xla_tpu_enable_latency_hiding_scheduler``.
            environments: a serialized ``xla.CompilationEnvironmentsProto``; what it does not say is the compiler's
                default.
        """
        from pjrt.capi._tpu_executable import compiler_setting

        return compiler_setting(self.scope, name, environments)

    def profiler(self, options=b""):
        from pjrt.capi._profiler import new_profiler

        return new_profiler(self.scope, options)

    def compile_triton(self, module, arch_name, *, num_warps, num_ctas, num_stages):
        from pjrt.capi._triton import compile_triton

        return compile_triton(self.scope, module, arch_name, num_warps, num_ctas, num_stages)


@documented
class LoadedPlugin(PluginCore, Plugin):
    """A plugin that was loaded from a library, or from a capsule that holds its table."""

    @property
    def capabilities(self):
        return of_plugin((<PluginCore>self).api, self.attributes)


def _located(error, path, what, advice):
    """The error of a plugin with the path of its library and the next step."""
    return PjrtError.of(error.code, f"{path}: {what}: {error.message}; {advice}", payloads=error.payloads)


def load_plugin(path):
    """Loads a plugin from its shared library.

    The library stays loaded until the process ends. Loading it again gives the same plugin; a file that has changed
    since gives a new one beside it.

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
        handle = open_plugin_library(text)
    except OSError as error:
        raise FailedPreconditionError(
            f"{text}: the library could not be opened: {error}; install what it names as missing, or check that it is "
            "a shared library for this machine"
        ) from error
    return _in_library(handle, text, found.stem)


def _in_library(handle, path, name):
    """The plugin in an opened library."""
    cdef get_api_t get_api
    cdef const PJRT_Api *table
    get_api = <get_api_t><size_t>(library_symbol(handle, "GetPjrtApi") or 0)
    if get_api == NULL:
        raise FailedPreconditionError(
            f"{path}: the library has no function GetPjrtApi, so it is no PJRT plugin; give the path of one"
        )
    with nogil:
        table = get_api()
    return _plugin_of(<size_t>table, path, name)


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


def _plugin_of(size_t table, path, name, owner=None):
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
