"""The Triton extension: compiling a kernel given as Triton IR."""

from libc.stdlib cimport free

from pjrt.capi._api cimport blob, start, text
from pjrt.capi._gen_abi cimport *
from pjrt.capi._scope cimport Scope


def compile_triton(Scope scope, module, arch_name, num_warps, num_ctas, num_stages):
    """``Plugin.compile_triton``: return the assembly, the bytes of shared memory, and the path of the binary."""
    cdef PJRT_Triton_Compile_Args args
    cdef bytes code = module.encode() if isinstance(module, str) else bytes(module)
    cdef bytes arch = arch_name.encode()
    start(&args, PJRT_Triton_Compile_Args_STRUCT_SIZE)
    args.module = code
    args.module_size = len(code)
    args.arch_name = arch
    args.arch_name_size = len(arch)
    args.num_warps = num_warps
    args.num_ctas = num_ctas
    args.num_stages = num_stages
    scope.call(SLOT_PJRT_Triton_Compile, &args)
    try:
        assembly = blob(args.out_asm, args.out_asm_size, "the assembly of a kernel")
        return assembly, args.out_smem_bytes, text(args.out_path, args.out_path_size, "the path of a kernel")
    finally:
        free(<void *>args.out_asm)
        free(<void *>args.out_path)
