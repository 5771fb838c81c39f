"""The shardings of results, which JAX asks of an executable of several partitions."""

from __future__ import annotations

from typing import Any

from pjrt.api.errors import UnimplementedError
from pjrt.frameworks import _jax_lowering


def install() -> None:
    """Have JAX raise an error if neither its user nor a device of ours declares how results are split.

    JAX itself goes on without a sharding until something else fails.
    """
    from jax._src.interpreters import pxla

    original = pxla._maybe_get_and_check_out_shardings

    def check(executable: Any, asked: Any, *more: Any) -> Any:
        shardings = original(executable, asked, *more)
        missing = [number for number, each in enumerate(shardings) if isinstance(each, pxla.UnspecifiedValue)]
        if missing and _jax_lowering.is_client_of_ours(executable.client):
            raise UnimplementedError(
                f"the device '{executable.client.platform}' does not declare how result {missing[0]} of a program of "
                "several partitions is split over its devices: give out_shardings to jax.jit, or output_shardings to "
                "the pjrt.host.Compiled that the device's compile returns"
            )
        return shardings

    pxla._maybe_get_and_check_out_shardings = check
