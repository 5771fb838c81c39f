"""The AbiVersion extension: whether a serialized executable fits a runtime."""

cimport cython

from pjrt.capi._api cimport blob, start
from pjrt.capi._executable cimport ExecutableCore
from pjrt.capi._gen_abi cimport *
from pjrt.capi._scope cimport ClientScope, Handle, Scope, free_scope

from pjrt.api.abi_version import ExecutableAbiVersion, RuntimeAbiVersion
from pjrt.api.errors import InternalError, InvalidArgumentError
from pjrt.capi._documented import documented


cdef PJRT_AbiVersion_Extension *_extension(Scope scope) except NULL:
    return <PJRT_AbiVersion_Extension *>scope.api.extension(
        PJRT_Extension_Type_AbiVersion, PJRT_AbiVersion_Extension_STRUCT_SIZE, "AbiVersion"
    )


@cython.no_gc_clear
cdef class RuntimeVersionCore(Handle):
    """A ``PJRT_RuntimeAbiVersion``."""

    @property
    def platform_id(self):
        cdef PJRT_RuntimeAbiVersion_PlatformId_Args args
        start(&args, PJRT_RuntimeAbiVersion_PlatformId_Args_STRUCT_SIZE)
        args.abi_version = <PJRT_RuntimeAbiVersion *>self.use()
        self.call_extension(
            <void *>_extension(self.scope).runtime_abi_version_platform_id, &args, "PJRT_RuntimeAbiVersion_PlatformId"
        )
        return args.platform_id

    def to_proto(self):
        cdef PJRT_RuntimeAbiVersion_ToProto_Args args
        start(&args, PJRT_RuntimeAbiVersion_ToProto_Args_STRUCT_SIZE)
        args.abi_version = <PJRT_RuntimeAbiVersion *>self.use()
        self.call_extension(
            <void *>_extension(self.scope).runtime_abi_version_to_proto, &args, "PJRT_RuntimeAbiVersion_ToProto"
        )
        try:
            return blob(args.serialized_proto, args.serialized_proto_size, "an ABI version")
        finally:
            if args.serialized_proto_deleter != NULL:
                with nogil:
                    args.serialized_proto_deleter(args.serialized_proto_holder)

    def check_compatible_with(self, other):
        if isinstance(other, RuntimeVersionCore):
            self._check_runtime(other)
        elif isinstance(other, ExecutableVersionCore):
            self._check_executable(other)
        elif isinstance(other, ExecutableAbiVersion):  # one that was kept as its proto, or another's: the plugin knows
            self._check_executable(executable_version_from_proto(self.scope, other.to_proto()))
        else:
            raise InvalidArgumentError(f"a runtime is compared with ABI versions of its own plugin, found {other!r}")

    cdef int _check_runtime(self, RuntimeVersionCore other) except -1:
        cdef PJRT_RuntimeAbiVersion_IsCompatibleWithRuntime_Args args
        start(&args, PJRT_RuntimeAbiVersion_IsCompatibleWithRuntime_Args_STRUCT_SIZE)
        args.abi_version = <PJRT_RuntimeAbiVersion *>self.use()
        args.other_abi_version = <PJRT_RuntimeAbiVersion *>other.use()
        return self.call_extension(
            <void *>_extension(self.scope).runtime_abi_version_is_compatible_with_runtime,
            &args,
            "PJRT_RuntimeAbiVersion_IsCompatibleWithRuntime",
        )

    cdef int _check_executable(self, ExecutableVersionCore other) except -1:
        cdef PJRT_RuntimeAbiVersion_IsCompatibleWithExecutable_Args args
        start(&args, PJRT_RuntimeAbiVersion_IsCompatibleWithExecutable_Args_STRUCT_SIZE)
        args.abi_version = <PJRT_RuntimeAbiVersion *>self.use()
        args.executable_abi_version = <PJRT_ExecutableAbiVersion *>other.use()
        return self.call_extension(
            <void *>_extension(self.scope).runtime_abi_version_is_compatible_with_executable,
            &args,
            "PJRT_RuntimeAbiVersion_IsCompatibleWithExecutable",
        )

    cdef int destroy(self, void *native) except -1:
        cdef PJRT_RuntimeAbiVersion_Destroy_Args args
        start(&args, PJRT_RuntimeAbiVersion_Destroy_Args_STRUCT_SIZE)
        args.abi_version = <PJRT_RuntimeAbiVersion *>native
        return self.scope.api.call_extension(
            <void *>_extension(self.scope).runtime_abi_version_destroy, &args, "PJRT_RuntimeAbiVersion_Destroy"
        )


@documented
class PluginRuntimeAbiVersion(RuntimeVersionCore, RuntimeAbiVersion):
    """The ABI version of a plugin's runtime (``PJRT_RuntimeAbiVersion``)."""

    __slots__ = ()


@cython.no_gc_clear
cdef class ExecutableVersionCore(Handle):
    """A ``PJRT_ExecutableAbiVersion``."""

    @property
    def platform_id(self):
        cdef PJRT_ExecutableAbiVersion_PlatformId_Args args
        start(&args, PJRT_ExecutableAbiVersion_PlatformId_Args_STRUCT_SIZE)
        args.abi_version = <PJRT_ExecutableAbiVersion *>self.use()
        self.call_extension(
            <void *>_extension(self.scope).executable_abi_version_platform_id,
            &args,
            "PJRT_ExecutableAbiVersion_PlatformId",
        )
        return args.platform_id

    def to_proto(self):
        cdef PJRT_ExecutableAbiVersion_ToProto_Args args
        start(&args, PJRT_ExecutableAbiVersion_ToProto_Args_STRUCT_SIZE)
        args.abi_version = <PJRT_ExecutableAbiVersion *>self.use()
        self.call_extension(
            <void *>_extension(self.scope).executable_abi_version_to_proto, &args, "PJRT_ExecutableAbiVersion_ToProto"
        )
        try:
            return blob(args.serialized_proto, args.serialized_proto_size, "an ABI version")
        finally:
            if args.serialized_proto_deleter != NULL:
                with nogil:
                    args.serialized_proto_deleter(args.serialized_proto_holder)

    cdef int destroy(self, void *native) except -1:
        cdef PJRT_ExecutableAbiVersion_Destroy_Args args
        start(&args, PJRT_ExecutableAbiVersion_Destroy_Args_STRUCT_SIZE)
        args.abi_version = <PJRT_ExecutableAbiVersion *>native
        return self.scope.api.call_extension(
            <void *>_extension(self.scope).executable_abi_version_destroy, &args, "PJRT_ExecutableAbiVersion_Destroy"
        )


@documented
class PluginExecutableAbiVersion(ExecutableVersionCore, ExecutableAbiVersion):
    """The ABI version that an executable of a plugin needs (``PJRT_ExecutableAbiVersion``)."""

    __slots__ = ()


cdef object _runtime(Scope scope, PJRT_RuntimeAbiVersion *native):
    """Versions outlive the client they come from."""
    if native == NULL:
        raise InternalError("the plugin gave no ABI version where one was expected; report it to its vendor")
    version = PluginRuntimeAbiVersion()
    (<Handle>version).open(free_scope(scope), native, 0)
    return version


cdef object _executable(Scope scope, PJRT_ExecutableAbiVersion *native):
    if native == NULL:
        raise InternalError("the plugin gave no ABI version where one was expected; report it to its vendor")
    version = PluginExecutableAbiVersion()
    (<Handle>version).open(free_scope(scope), native, 0)
    return version


def runtime_version(ClientScope client):
    """``Client.runtime_abi_version``."""
    cdef PJRT_Client_RuntimeAbiVersion_Args args
    cdef PJRT_AbiVersion_Extension *extension = _extension(client)
    start(&args, PJRT_Client_RuntimeAbiVersion_Args_STRUCT_SIZE)
    args.client = client.native
    client.call_extension(<void *>extension.client_runtime_abi_version, &args, "PJRT_Client_RuntimeAbiVersion")
    return _runtime(client, args.abi_version)


def executable_version(ExecutableCore executable):
    """``Executable.abi_version``."""
    cdef PJRT_Executable_GetAbiVersion_Args args
    cdef PJRT_AbiVersion_Extension *extension = _extension(executable.scope)
    start(&args, PJRT_Executable_GetAbiVersion_Args_STRUCT_SIZE)
    args.executable = <PJRT_Executable *>executable.use()
    executable.call_extension(<void *>extension.executable_get_abi_version, &args, "PJRT_Executable_GetAbiVersion")
    return _executable(executable.scope, args.abi_version)


def runtime_version_from_proto(Scope scope, serialized):
    """The runtime's version that ``RuntimeAbiVersion.to_proto`` gave."""
    cdef PJRT_RuntimeAbiVersion_FromProto_Args args
    cdef bytes data = bytes(serialized)
    cdef PJRT_AbiVersion_Extension *extension = _extension(scope)
    start(&args, PJRT_RuntimeAbiVersion_FromProto_Args_STRUCT_SIZE)
    args.serialized_proto = data
    args.serialized_proto_size = len(data)
    scope.call_extension(<void *>extension.runtime_abi_version_from_proto, &args, "PJRT_RuntimeAbiVersion_FromProto")
    return _runtime(scope, args.abi_version)


def executable_version_from_proto(Scope scope, serialized):
    """The executable's version that ``ExecutableAbiVersion.to_proto`` gave."""
    cdef PJRT_ExecutableAbiVersion_FromProto_Args args
    cdef bytes data = bytes(serialized)
    cdef PJRT_AbiVersion_Extension *extension = _extension(scope)
    start(&args, PJRT_ExecutableAbiVersion_FromProto_Args_STRUCT_SIZE)
    args.serialized_proto = data
    args.serialized_proto_size = len(data)
    scope.call_extension(
        <void *>extension.executable_abi_version_from_proto, &args, "PJRT_ExecutableAbiVersion_FromProto"
    )
    return _executable(scope, args.abi_version)
