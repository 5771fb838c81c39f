"""Any sequence of operations gives what numpy gives, with nothing in use at the end."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import toys
from hypothesis import given, settings
from hypothesis import strategies as st

import pjrt
from pjrt.host import Compiled, HostClient, RunContext

pytestmark = pytest.mark.full

SPEC = toys.spec("f32[4]")

MAKE = ["put", "share", "alias", "transfer"]
USE = ["negate", "both", "sum", "copy", "fulfill", "view", "reference"]
USE_UP = ["in_place", "depend", "cast", "delete"]

steps = st.lists(
    st.tuples(st.sampled_from(MAKE + USE + USE_UP), st.integers(0, 30), st.integers(0, 30)),
    max_size=30,
)


def compile_named(program: pjrt.Program, options: pjrt.CompileOptions) -> Compiled:
    def add_in_place(x: np.ndarray) -> np.ndarray:
        x += 1
        return x

    def all_sum(context: RunContext, x: np.ndarray) -> np.ndarray:
        return np.sum(context.rendezvous("sum", x), axis=0, dtype=x.dtype)

    match program.code:
        case b"negate":
            return toys.compiled(lambda x: -x)
        case b"both":
            return toys.compiled(lambda x, y: (x + y, x), "f32[4] f32[4]", "f32[4] f32[4]")
        case b"in_place":
            return toys.compiled(add_in_place, aliases={0: 0})
        case _:
            return toys.compiled(all_sum, takes_context=True)


class Machine:
    """Two devices, the buffers on them, and beside each buffer the value that it must have."""

    def __init__(self) -> None:
        self.client = HostClient("machine", compile=compile_named, num_devices=2, collective_timeout=toys.TIMEOUT)
        portable = pjrt.CompileOptions(compile_portable_executable=True)
        self.programs = {name: self.client.compile(name, portable) for name in ("negate", "both", "in_place")}
        self.all_sum = self.client.compile("sum", toys.replicas(2))
        self.buffers: list[tuple[pjrt.Buffer, np.ndarray]] = []
        self.aliases: list[tuple[pjrt.Buffer, pjrt.AliasFulfillment, int]] = []
        self.seen: list[tuple[Any, np.ndarray]] = []
        self.count = 0

    def new(self) -> np.ndarray:
        self.count += 1
        return toys.floats(self.count, 2, 3, 4)

    def keep(self, buffer: pjrt.Buffer, value: np.ndarray) -> None:
        self.buffers.append((buffer, value))

    def step(self, name: str, a: int, b: int) -> None:
        device = self.client.devices[a % 2]
        if name in MAKE:
            self.make(name, device)
        elif self.buffers:
            self.use(name, *self.buffers[a % len(self.buffers)], b)

    def make(self, name: str, device: pjrt.Device) -> None:
        value = self.new()
        if name == "put":
            self.keep(self.client.buffer_from_host(value, device=device), value.copy())
            value[:] = -99
        elif name == "share":
            semantics = pjrt.HostBufferSemantics.IMMUTABLE_ZERO_COPY
            self.keep(self.client.buffer_from_host(value, device=device, semantics=semantics), value)
            self.seen.append((value, value.copy()))
        elif name == "transfer":
            with self.client.create_buffers_for_async_host_to_device(
                [SPEC], memory_space=device.default_memory_space
            ) as manager:
                manager.transfer_data(0, value[2:], 8, is_last_transfer=False)
                self.keep(manager.retrieve_buffer(0), value.copy())
                manager.transfer_data(0, value[:2].copy())
        else:
            self.aliases.append(
                (*self.client.create_alias_buffer(SPEC, memory_space=device.default_memory_space), len(self.buffers))
            )

    def use(self, name: str, buffer: pjrt.Buffer, value: np.ndarray, b: int) -> None:
        device = buffer.device
        if name == "negate":
            self.keep(self.programs[name].execute_portable([buffer], device)[0], -value)
        elif name == "both":
            other, other_value = self.buffers[b % len(self.buffers)]
            first, second = self.programs[name].execute_portable([buffer, other.copy_to(device)], device)
            self.keep(first, value + other_value)
            self.keep(second, value)
        elif name == "sum":
            rows = [[buffer.copy_to(d)] for d in self.client.devices]
            for (out,) in self.all_sum.execute(rows):
                self.keep(out, 2 * value)
        elif name == "copy":
            self.keep(buffer.copy_to(self.client.devices[b % 2]), value)
        elif name == "fulfill" and self.aliases:
            self.fulfill(buffer, value)
        elif name == "view":
            self.seen.append((buffer.to_host(), value))
        elif name == "reference":
            self.seen.append((buffer.raw(), value))
        elif name in USE_UP:
            self.use_up(name, buffer, value)

    def fulfill(self, buffer: pjrt.Buffer, value: np.ndarray) -> None:
        for number, (alias, fulfillment, _) in enumerate(self.aliases):
            if alias.device is buffer.device:
                fulfillment.fulfill(buffer)
                self.keep(alias, value)
                del self.aliases[number]
                return

    def use_up(self, name: str, buffer: pjrt.Buffer, value: np.ndarray) -> None:
        self.buffers = [entry for entry in self.buffers if entry[0] is not buffer]
        if name == "in_place":
            self.keep(self.programs[name].execute_portable([buffer], buffer.device)[0], value + 1)
        elif name == "depend":
            self.keep(buffer.donate_with_control_dependency(buffer.ready()), value)
        elif name == "cast":
            words = buffer.bitcast(pjrt.ElementType.U32, (2, 2))
            self.keep(words.bitcast(pjrt.ElementType.F32, (4,)), value)
        else:
            buffer.delete()
        assert buffer.is_deleted

    def check(self) -> None:
        for buffer, value in self.buffers:
            np.testing.assert_array_equal(buffer.to_host().result(toys.TIMEOUT), value)
        for what, value in self.seen:
            if isinstance(what, pjrt.Future):
                found = what.result(toys.TIMEOUT)
            elif isinstance(what, pjrt.RawBuffer):
                found = np.empty(4, np.float32)
                what.copy_to_host(found).result(toys.TIMEOUT)
            else:
                found = what
            np.testing.assert_array_equal(found, value)


@settings(max_examples=40, deadline=None)
@given(steps)
def test_any_sequence_gives_what_numpy_gives(sequence: list[tuple[str, int, int]]) -> None:
    machine = Machine()
    for step in sequence:
        machine.step(*step)
    machine.check()
    client, accounts = machine.client, [space.account for space in machine.client.memory_spaces]
    client.close()
    del machine
    gc.collect()
    assert [account.in_use for account in accounts] == [0] * len(accounts)
