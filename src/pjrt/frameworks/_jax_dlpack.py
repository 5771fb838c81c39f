"""``jax.dlpack.from_dlpack`` onto platforms of this package: a copy if the memory cannot be used where it is.

JAX's own CPU backend makes that copy by a function that the C API does not have.
"""

from __future__ import annotations

from typing import Any

from pjrt.frameworks import _jax_lowering
from pjrt.host_memory.dlpack import from_capsule


def install() -> None:
    """Have JAX import memory into our platforms with our function, and into all others with its own."""
    from jax._src import dlpack

    dlpack._jax = _Bindings(dlpack._jax)


class _Bindings:
    """jaxlib's bindings as JAX's DLPack module uses them, with one function replaced."""

    def __init__(self, bindings: Any) -> None:
        self._bindings = bindings

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bindings, name)

    def dlpack_managed_tensor_to_buffer(
        self, capsule: Any, device: Any, stream: Any, copy: bool | None = None, *more: Any
    ) -> Any:
        """Return a JAX array on a device, from a capsule."""
        into = self._bindings.dlpack_managed_tensor_to_buffer
        if not _jax_lowering.is_client_of_ours(device.client):
            return into(capsule, device, stream, copy, *more)
        if copy:
            return _copied(capsule, device)
        try:
            return into(capsule, device, stream, False, *more)
        except self._bindings.JaxRuntimeError:
            if copy is not None:
                raise
        return _copied(capsule, device)


def _copied(capsule: Any, device: Any) -> Any:
    import jax

    return jax.device_put(from_capsule(capsule).copy(), device)
