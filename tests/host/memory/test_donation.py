"""Donation: arguments are used up; memory is reused where nobody else can see it, and copied where somebody can."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import toys

import pjrt
from pjrt.host import HostClient


def add_in_place(x: np.ndarray) -> np.ndarray:
    x += 1
    return x


def donating(**options: Any) -> HostClient:
    return toys.client(add_in_place, facts={"aliases": {0: 0}}, **options)


def test_donated_memory_becomes_the_outputs() -> None:
    with donating() as client:
        x = client.buffer_from_host(toys.floats())
        pointer = x.unsafe_pointer()
        exe = client.compile("program")
        for _ in range(3):
            used = x
            (x,) = exe(used)
            assert used.is_deleted
        assert x.unsafe_pointer() == pointer
        np.testing.assert_array_equal(np.asarray(x), toys.floats() + 3)


def test_a_chain_of_donations_whose_head_is_still_to_come_reuses_memory_too() -> None:
    gate = toys.Gate()
    pointers: list[int] = []

    def first(x: np.ndarray) -> np.ndarray:
        made = gate(x)
        pointers.append(made.ctypes.data)
        return made

    client = HostClient(
        "chain",
        compile=lambda program, _: (
            toys.compiled(first) if program.code == b"first" else toys.compiled(add_in_place, aliases={0: 0})
        ),
    )
    donate = client.compile("donate")
    (x,) = client.compile("first")(toys.floats())
    for _ in range(4):
        (x,) = donate(x)
    gate.open()
    np.testing.assert_array_equal(np.asarray(x), toys.floats() + 5)
    assert x.unsafe_pointer() == pointers[0]
    client.close()


def test_results_of_programs_are_reused_in_place() -> None:
    with donating() as client:
        exe = client.compile("program")
        (x,) = exe(toys.floats())
        pointer = x.unsafe_pointer()
        (x,) = exe(x)
        assert x.unsafe_pointer() == pointer


@pytest.mark.parametrize("holder", ["view", "dlpack", "reference", "raw", "alias", "user"])
def test_memory_that_somebody_can_see_is_not_overwritten(holder: str) -> None:
    with donating() as client:
        array = toys.floats()
        semantics = pjrt.HostBufferSemantics.IMMUTABLE_ZERO_COPY if holder == "user" else 0
        x = client.buffer_from_host(array, semantics=pjrt.HostBufferSemantics(semantics))
        pointer = x.unsafe_pointer()
        alias, fulfillment = client.create_alias_buffer(toys.spec("f32[4]"))
        held: Any = {
            "view": lambda: np.asarray(x)[2:],
            "dlpack": lambda: np.from_dlpack(x),
            "reference": x.external_reference,
            "raw": x.raw,
            "alias": lambda: fulfillment.fulfill(x),
            "user": lambda: array,
        }[holder]()
        (out,) = client.compile("program")(x)
        np.testing.assert_array_equal(np.asarray(out), toys.floats() + 1)
        assert out.unsafe_pointer() != pointer
        if holder in ("view", "dlpack", "user"):
            np.testing.assert_array_equal(held, toys.floats()[-len(held) :])
        if holder == "alias":
            np.testing.assert_array_equal(np.asarray(alias), toys.floats())


def test_work_that_reads_a_buffer_is_done_before_or_apart_from_its_donation() -> None:
    results: list[float] = []

    def both(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        results.append(float(x[0]))
        return x + y

    client = HostClient(
        "mixed",
        compile=lambda program, _: (
            toys.compiled(add_in_place, aliases={0: 0})
            if program.code == b"donate"
            else toys.compiled(both, "f32[4] f32[4]")
        ),
    )
    x = client.buffer_from_host(toys.floats())
    late, fulfillment = client.create_alias_buffer(toys.spec("f32[4]"))
    (reader,) = client.compile("read")(x, late)
    (out,) = client.compile("donate")(x)
    np.testing.assert_array_equal(np.asarray(out), toys.floats() + 1)
    fulfillment.fulfill(client.buffer_from_host(toys.floats()))
    np.testing.assert_array_equal(np.asarray(reader), 2 * toys.floats())
    assert results == [0.0]
    client.close()


def test_non_donatable_inputs_are_kept() -> None:
    def run(x: np.ndarray) -> np.ndarray:
        return x + 1

    with toys.client(run, facts={"donated": (0,)}) as client:
        exe = client.compile("program")
        x = client.buffer_from_host(toys.floats())
        keep = pjrt.ExecuteOptions(non_donatable_input_indices=frozenset({0}))
        exe.execute_sharded([x], client.devices[0], keep)
        assert not x.is_deleted
        np.testing.assert_array_equal(np.asarray(x), toys.floats())
        exe.execute_sharded([x], client.devices[0])
        assert x.is_deleted


def test_use_after_donation_is_a_clear_error() -> None:
    with donating() as client:
        exe = client.compile("program")
        x = client.buffer_from_host(toys.floats())
        exe(x)
        uses = [
            lambda: exe(x),
            lambda: np.asarray(x),
            x.to_host,
            x.ready,
            x.raw,
            x.unsafe_pointer,
            x.external_reference,
            x.__dlpack__,
            lambda: x.copy_to(client.devices[0]),
            lambda: x.copy_raw_to_host(bytearray(16)),
            lambda: x.bitcast(pjrt.ElementType.S32, (4,)),
            lambda: x.donate_with_control_dependency(pjrt.Future.completed(None)),
        ]
        for use in uses:
            with pytest.raises(pjrt.FailedPreconditionError, match="deleted or donated"):
                use()
        assert (x.shape, x.element_type, x.device, x.on_device_size) == (
            (4,),
            pjrt.ElementType.F32,
            client.devices[0],
            16,
        )
        x.delete()


def test_a_buffer_is_not_donated_and_used_otherwise_in_one_call() -> None:
    with toys.client(lambda x, y: x + y, "f32[4] f32[4]", facts={"donated": [1]}) as client:
        exe = client.compile("program")
        x = client.buffer_from_host(toys.floats())
        with pytest.raises(pjrt.InvalidArgumentError, match="donated"):
            exe(x, x)
        assert not x.is_deleted
        (out,) = exe.execute_sharded(
            [x, x], client.devices[0], pjrt.ExecuteOptions(non_donatable_input_indices=frozenset({1}))
        )
        np.testing.assert_array_equal(np.asarray(out), 2 * toys.floats())


def test_a_call_that_is_refused_uses_nothing_up() -> None:
    with donating(num_devices=2) as client:
        exe = client.compile("program", toys.replicas(2))
        first = client.buffer_from_host(toys.floats(), device=client.devices[0])
        with pytest.raises(pjrt.InvalidArgumentError):
            exe.execute([[first], [first]])
        assert not first.is_deleted


def test_a_donated_argument_that_failed_poisons_and_a_function_that_fails_has_used_its_arguments_up() -> None:
    with toys.failing(ValueError("broken")) as client:
        x = client.buffer_from_host(toys.floats())
        client.compile("program")(x)
        assert not x.is_deleted
    with donating() as client:
        bad = client.create_error_buffer(pjrt.DataLossError("gone"), toys.spec("f32[4]"))
        (out,) = client.compile("program")(bad)
        assert bad.is_deleted
        with pytest.raises(pjrt.DataLossError):
            np.asarray(out)


def test_undeclared_numbers_in_donation_are_refused_at_compile_time() -> None:
    for facts in ({"aliases": {1: 0}}, {"aliases": {0: 1}}, {"donated": [3]}, {"donated": [-1]}):
        with pytest.raises(pjrt.InvalidArgumentError, match="donation names"):
            toys.client(add_in_place, facts=facts).compile("program")
    with pytest.raises(pjrt.InvalidArgumentError, match="one parameter only"):
        toys.client(add_in_place, "f32[4] f32[4]", facts={"aliases": {0: 0, 1: 0}}).compile("program")
