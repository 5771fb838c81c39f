"""The AbiVersion extension: whether a serialized executable fits a runtime."""

cimport cython

from pjrt.capi._api cimport start
from pjrt.capi._executable cimport ExecutableCore
from pjrt.capi._gen_abi cimport *
from pjrt.capi._getter cimport Getter
from pjrt.capi._scope cimport ClientScope, Handle, Scope, free_scope

from pjrt.api.executable import ExecutableAbiVersion, RuntimeAbiVersion
from pjrt.api.errors import InternalError, InvalidArgumentError
from pjrt.capi._documented import documented

cdef Getter _RUNTIME_PROTO = Getter("PJRT_RuntimeAbiVersion_ToProto")
cdef Getter _EXECUTABLE_PROTO = Getter("PJRT_ExecutableAbiVersion_ToProto")


@cython.no_gc_clear
cdef class RuntimeVersionCore(Handle):
    """A ``PJRT_RuntimeAbiVersion``."""

    def to_proto(self):
        return _RUNTIME_PROTO.ask(self)

    def check_compatible_with(self, other):
        if isinstance(other, RuntimeVersionCore):
            self._check_runtime(other)
        elif isinstance(other, ExecutableVersionCore):
            self._check_executable(other)
        elif isinstance(other, ExecutableAbiVersion):  # kept as its proto, or of another plugin: this one compares
            self._check_executable(executable_version_from_proto(self.scope, other.to_proto()))
        else:
            raise InvalidArgumentError(f"a runtime is compared with ABI versions of its own plugin, found {other!r}")

    cdef int _check_runtime(self, RuntimeVersionCore other) except -1:
        cdef PJRT_RuntimeAbiVersion_IsCompatibleWithRuntime_Args args
        start(&args, PJRT_RuntimeAbiVersion_IsCompatibleWithRuntime_Args_STRUCT_SIZE)
        args.abi_version = <PJRT_RuntimeAbiVersion *>self.use()
        args.other_abi_version = <PJRT_RuntimeAbiVersion *>other.use()
        return self.call(SLOT_PJRT_RuntimeAbiVersion_IsCompatibleWithRuntime, &args)

    cdef int _check_executable(self, ExecutableVersionCore other) except -1:
        cdef PJRT_RuntimeAbiVersion_IsCompatibleWithExecutable_Args args
        start(&args, PJRT_RuntimeAbiVersion_IsCompatibleWithExecutable_Args_STRUCT_SIZE)
        args.abi_version = <PJRT_RuntimeAbiVersion *>self.use()
        args.executable_abi_version = <PJRT_ExecutableAbiVersion *>other.use()
        return self.call(SLOT_PJRT_RuntimeAbiVersion_IsCompatibleWithExecutable, &args)

    cdef int destroy(self, void *native) except -1:
        cdef PJRT_RuntimeAbiVersion_Destroy_Args args
        start(&args, PJRT_RuntimeAbiVersion_Destroy_Args_STRUCT_SIZE)
        args.abi_version = <PJRT_RuntimeAbiVersion *>native
        return self.scope.api.call(SLOT_PJRT_RuntimeAbiVersion_Destroy, &args)


@documented
class PluginRuntimeAbiVersion(RuntimeVersionCore, RuntimeAbiVersion):
    """The ABI version of a plugin's runtime (``PJRT_RuntimeAbiVersion``)."""

    __slots__ = ()

    platform_id = Getter("PJRT_RuntimeAbiVersion_PlatformId")


@cython.no_gc_clear
cdef class ExecutableVersionCore(Handle):
    """A ``PJRT_ExecutableAbiVersion``."""

    def to_proto(self):
        return _EXECUTABLE_PROTO.ask(self)

    cdef int destroy(self, void *native) except -1:
        cdef PJRT_ExecutableAbiVersion_Destroy_Args args
        start(&args, PJRT_ExecutableAbiVersion_Destroy_Args_STRUCT_SIZE)
        args.abi_version = <PJRT_ExecutableAbiVersion *>native
        return self.scope.api.call(SLOT_PJRT_ExecutableAbiVersion_Destroy, &args)


@documented
class PluginExecutableAbiVersion(ExecutableVersionCore, ExecutableAbiVersion):
    """The ABI version that an executable of a plugin needs (``PJRT_ExecutableAbiVersion``)."""

    __slots__ = ()

    platform_id = Getter("PJRT_ExecutableAbiVersion_PlatformId")


cdef object _version(kind, Scope scope, void *native):
    """Return a version that the plugin made; versions outlive the client that they come from."""
    if native == NULL:
        raise InternalError("the plugin gave no ABI version where one was expected; report it to its vendor")
    version = kind()
    (<Handle>version).open(free_scope(scope), native, 0)
    return version


def runtime_version(ClientScope client):
    """``Client.runtime_abi_version``."""
    cdef PJRT_Client_RuntimeAbiVersion_Args args
    start(&args, PJRT_Client_RuntimeAbiVersion_Args_STRUCT_SIZE)
    args.client = <PJRT_Client *>client.native
    client.call(SLOT_PJRT_Client_RuntimeAbiVersion, &args)
    return _version(PluginRuntimeAbiVersion, client, args.abi_version)


def executable_version(ExecutableCore executable):
    """``Executable.abi_version``."""
    cdef PJRT_Executable_GetAbiVersion_Args args
    start(&args, PJRT_Executable_GetAbiVersion_Args_STRUCT_SIZE)
    args.executable = <PJRT_Executable *>executable.use()
    executable.call(SLOT_PJRT_Executable_GetAbiVersion, &args)
    return _version(PluginExecutableAbiVersion, executable.scope, args.abi_version)


def runtime_version_from_proto(Scope scope, serialized):
    """Return the version of a runtime that ``RuntimeAbiVersion.to_proto`` returned as bytes."""
    cdef PJRT_RuntimeAbiVersion_FromProto_Args args
    cdef bytes data = bytes(serialized)
    start(&args, PJRT_RuntimeAbiVersion_FromProto_Args_STRUCT_SIZE)
    args.serialized_proto = data
    args.serialized_proto_size = len(data)
    scope.call(SLOT_PJRT_RuntimeAbiVersion_FromProto, &args)
    return _version(PluginRuntimeAbiVersion, scope, args.abi_version)


def executable_version_from_proto(Scope scope, serialized):
    """Return the version of an executable that ``ExecutableAbiVersion.to_proto`` returned as bytes."""
    cdef PJRT_ExecutableAbiVersion_FromProto_Args args
    cdef bytes data = bytes(serialized)
    start(&args, PJRT_ExecutableAbiVersion_FromProto_Args_STRUCT_SIZE)
    args.serialized_proto = data
    args.serialized_proto_size = len(data)
    scope.call(SLOT_PJRT_ExecutableAbiVersion_FromProto, &args)
    return _version(PluginExecutableAbiVersion, scope, args.abi_version)
