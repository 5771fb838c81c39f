"""A device's function that waits for its own device fails with a clear error instead of hanging."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from toys import TIMEOUT, client, negate

import pjrt

X = np.arange(4, dtype=np.float32)
LARGE = np.zeros((1 << 15,), np.float32)
"""Too large to be copied where it stands."""

ANY = pjrt.Program(b"", format="toy")

Wait = Callable[[pjrt.Buffer], object]

WAITS: dict[str, Wait] = {
    "ready": lambda b: b.ready().result(TIMEOUT),
    "to_host": lambda b: b.to_host().result(TIMEOUT),
    "to_host in another layout": lambda b: b.to_host(layout=pjrt.TiledLayout((0,))).result(TIMEOUT),
    "numpy.asarray": np.asarray,
    "dlpack": np.from_dlpack,
    "copy_raw_to_host": lambda b: b.copy_raw_to_host(np.empty(4, np.float32)).result(TIMEOUT),
    "external_reference": lambda b: b.external_reference(),
    "copy_to": lambda b: b.copy_to(b.client.devices[1]).to_host().result(TIMEOUT),
    "then": lambda b: b.ready().then(lambda _: 1).result(TIMEOUT),
}


def run_inside(inside: Callable[[pjrt.Client, pjrt.LoadedExecutable], object]) -> pjrt.Buffer:
    """Return the result of a program whose function uses its own client, on the first of two devices."""
    begun = threading.Event()

    def run(x: Any) -> Any:
        if not begun.is_set():
            begun.set()
            inside(made, executable)
        return -x

    made = client(run, num_devices=2)
    executable = made.compile(ANY)
    return executable(X)[0]


@pytest.mark.parametrize("how", WAITS)
def test_a_function_that_waits_for_its_own_device(how: str) -> None:
    result = run_inside(lambda _, executable: WAITS[how](executable(X)[0]))
    with pytest.raises(pjrt.FailedPreconditionError, match="would wait for ever"):
        result.to_host().result(TIMEOUT)


def test_a_function_that_waits_for_another_device_that_waits_for_its_own() -> None:
    def inside(made: pjrt.Client, executable: pjrt.LoadedExecutable) -> None:
        there = pjrt.CompileOptions(device_assignment=pjrt.DeviceAssignment(((1,),)))
        moved = executable(X)[0].copy_to(made.devices[1])
        made.compile(ANY, there).execute_sharded([moved], made.devices[1])[0].to_host().result(TIMEOUT)

    with pytest.raises(pjrt.FailedPreconditionError, match="would wait for ever"):
        run_inside(inside).to_host().result(TIMEOUT)


def test_what_does_come_is_waited_for() -> None:
    def inside(made: pjrt.Client, executable: pjrt.LoadedExecutable) -> None:
        other = negate()
        assert (other.compile(ANY)(X)[0].to_host().result(TIMEOUT) == -X).all()
        there = made.compile(ANY, pjrt.CompileOptions(device_assignment=pjrt.DeviceAssignment(((1,),))))
        argument = made.buffer_from_host(X, device=made.devices[1])
        assert (there.execute_sharded([argument], made.devices[1])[0].to_host().result(TIMEOUT) == -X).all()
        transfer = made.buffer_from_host(
            LARGE, semantics=pjrt.HostBufferSemantics.IMMUTABLE_UNTIL_TRANSFER_COMPLETES, device=made.devices[0]
        )
        assert (transfer.to_host().result(TIMEOUT) == LARGE).all()

    assert (run_inside(inside).to_host().result(TIMEOUT) == -X).all()
