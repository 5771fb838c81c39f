"""The shardings of results, which JAX asks of an executable of several partitions."""

from __future__ import annotations

from typing import Any

from pjrt.api.errors import UnimplementedError
from pjrt.frameworks import _jax_lowering


def install() -> None:
    """Have JAX say what is missing where neither its user nor a device of ours tells how results are split.

    JAX goes on without an answer until something else fails.
    """
    from jax._src.interpreters import pxla

    original = pxla._maybe_get_and_check_out_shardings

    def check(executable: Any, asked: Any, *more: Any) -> Any:
        found = original(executable, asked, *more)
        missing = [number for number, each in enumerate(found) if isinstance(each, pxla.UnspecifiedValue)]
        if missing and _jax_lowering.is_client_of_ours(executable.client):
            raise UnimplementedError(
                f"the device '{executable.client.platform}' does not say how result {missing[0]} of a program of "
                "several partitions is split over its devices: give out_shardings to jax.jit, or output_shardings in "
                "the pjrt.host.Compiled that the device's compile returns"
            )
        return found

    pxla._maybe_get_and_check_out_shardings = check
