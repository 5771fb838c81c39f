"""A kernel in Triton, which is imported only where there is one."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def scaling_kernel(source, target, by, count, BLOCK: tl.constexpr):  # noqa: N803
    """Scale `count` numbers."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < count
    tl.store(target + offsets, tl.load(source + offsets, mask=inside) * by, mask=inside)


def triton_ir() -> str:
    """Return the kernel in Triton's IR."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    signature = {"source": "*fp32", "target": "*fp32", "by": "fp32", "count": "i32", "BLOCK": "constexpr"}
    source = ASTSource(fn=scaling_kernel, signature=signature, constexprs={"BLOCK": 1024})
    return str(compile(source, target=GPUTarget("cuda", 90, 32)).asm["ttir"])
