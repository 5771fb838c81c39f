"""The FFI extension: functions of the host inside programs."""

from pjrt.capi._api cimport start
from pjrt.capi._gen_abi cimport *
from pjrt.capi._scope cimport ClientScope
from pjrt.capi._values cimport whole

from pjrt.api.checks import expect
from pjrt.capi._ffi_handler import address_of

# The name of a platform in the registry of custom calls, where it is not the client's own.
_PLATFORMS = {"cuda": "CUDA", "rocm": "ROCM", "cpu": "Host"}


def register_handler(ClientScope client, name, handler, traits):
    """``Client.register_ffi_handler``."""
    cdef PJRT_FFI_Register_Handler_Args args
    cdef bytes target = expect(name, str, "the name of a custom call's target as a str").encode()
    cdef bytes platform = _PLATFORMS.get(client.platform, client.platform).encode()
    address = address_of(handler, traits, client.platform)
    start(&args, PJRT_FFI_Register_Handler_Args_STRUCT_SIZE)
    args.target_name = target
    args.target_name_size = len(target)
    args.handler = <void *><size_t>address
    args.platform_name = platform
    args.platform_name_size = len(platform)
    args.traits = <PJRT_FFI_Handler_TraitsBits><int>whole(traits, "the traits of an FFI handler", 32)
    client.call(SLOT_PJRT_FFI_Register_Handler, &args)


def register_type(ClientScope client, name):
    """``Client.register_ffi_type``."""
    cdef PJRT_FFI_Type_Register_Args args
    cdef PJRT_FFI_Type_Info info
    cdef bytes encoded = expect(name, str, "the name of an FFI type as a str").encode()
    info.deleter = NULL
    info.serialize = NULL
    info.deserialize = NULL
    start(&args, PJRT_FFI_Type_Register_Args_STRUCT_SIZE)
    args.type_name = encoded
    args.type_name_size = len(encoded)
    args.type_info = &info
    client.call(SLOT_PJRT_FFI_Type_Register, &args)
    return args.type_id
