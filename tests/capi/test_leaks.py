"""No leak: neither on the plugin's side, which counts its objects, nor on Python's, which counts its blocks."""

from __future__ import annotations

import gc
import resource
import sys
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny.control import Control

import pjrt
from pjrt.api.client import Client
from pjrt.capi import LoadedPlugin

X = np.arange(4, dtype=np.float32)


ROUNDS = 4


def grows(repeat: Callable[[], object], times: int, settle: Callable[[], object]) -> tuple[int, int]:
    """By how many of Python's blocks and how many kilobytes of memory the process grows with so many repetitions.

    Of several rounds, what the one that added least did: a leak adds to each of them, what other threads and allocators
    take at times does not.
    """
    blocks, kilobytes = [], []
    for number in range(ROUNDS + 1):
        for _ in range(times if number else times // 5):
            repeat()
        settle()
        gc.collect()
        blocks.append(sys.getallocatedblocks())
        kilobytes.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    return least_step(blocks), least_step(kilobytes)


def least_step(values: list[int]) -> int:
    return min(after - before for before, after in pairwise(values))


@pytest.mark.full
def test_a_million_executions(noop_library: Path) -> None:
    with pjrt.load_plugin(noop_library).client() as client:
        executable = client.compile(pjrt.Program(b"nothing", format="nothing"))
        buffer, device = client.buffer_from_host(np.float32(0)), client.devices[0]
        arguments = [buffer]
        blocks, kilobytes = grows(lambda: executable.execute_sharded(arguments, device), 250_000, gc.collect)
    assert blocks < 100, "each quarter of a million left Python objects behind"
    assert kilobytes < 1000, "each quarter of a million left memory behind"


WITHOUT_A_CLIENT: dict[str, Callable[[LoadedPlugin, pjrt.TopologyDescription, pjrt.Program], object]] = {
    "phases": lambda p, t, code: t.phase_compiler().run(code, t.phase_compiler().phase_names),
    "a phase that fails": lambda p, t, code: fails(pjrt.NotFoundError, lambda: t.phase_compiler().run(code, "nothing")),
    "parts that cannot be read": lambda p, t, code: fails(
        pjrt.InternalError, lambda: t.phase_compiler().run(code, "broken")
    ),
    "a TPU topology": lambda p, t, code: (
        t.tpu.process_ids,
        t.tpu.devices_of_process(0),
        t.tpu.place_of_device(3),
        t.tpu.device_in_subslice(t.tpu.subslice((1, 2, 1), (2, 1, 1)), (0, 0, 0), 1),
        t.tpu.with_host_bounds((1, 1, 1)).tpu.routing_strategy,
    ),
    "a TPU executable": lambda p, t, code: (
        t.compile(code).tpu().cost_analysis(),
        p.tpu_executable(b"TINYEXE1").memory_stats(),
        p.tpu_compiler_setting("warp", p.tpu_compilation_environments()),
    ),
    "several slices": lambda p, t, code: (
        t.multi_slice(2).num_devices_per_slice,
        t.multi_slice(3).serialize(),
        t.multi_slice(2).slice_and_device(1001),
    ),
}


def fails(kind: type[pjrt.PjrtError], use: Callable[[], object]) -> None:
    with pytest.raises(kind):
        use()


def most_in_full(names: Iterable[str], quick: set[str]) -> list[Any]:
    """Return names as parameters: all but the quick ones are left to the full tests."""
    return [pytest.param(name, marks=[] if name in quick else pytest.mark.full) for name in names]


@pytest.mark.parametrize("what", most_in_full(WITHOUT_A_CLIENT, {"a TPU executable"}))
def test_nothing_is_left_of_what_is_done_without_a_client(
    plugin: LoadedPlugin, adder: pjrt.Program, tiny_control: Control, what: str
) -> None:
    topology = plugin.topology("4x2", num_processes=2)
    gc.collect()
    before = tiny_control.live()
    blocks, kilobytes = grows(lambda: WITHOUT_A_CLIENT[what](plugin, topology, adder), 300, lambda: None)
    assert tiny_control.left_over(before) == {}
    assert blocks < 100, "each 300 left something behind"
    assert kilobytes < 1000, "each 300 left memory behind"


REPEATED: dict[str, Callable[[Client, pjrt.LoadedExecutable], object]] = {
    "execute": lambda c, e: e(X, X),
    "execute with futures": lambda c, e: e.execute(
        [[c.buffer_from_host(X), c.buffer_from_host(X)]], pjrt.ExecuteOptions(launch_id=3), returned_futures=[]
    ),
    "to_host": lambda c, e: c.buffer_from_host(X).to_host().result(),
    "ready": lambda c, e: c.buffer_from_host(X).ready().result(),
    "callbacks": lambda c, e: c.buffer_from_host(X).ready().add_done_callback(lambda _: None),
    "compile": lambda c, e: c.load(e.executable).name,
    "errors": lambda c, e: (
        c.create_error_buffer(pjrt.AbortedError("x", payloads={"a": b"b"}), pjrt.ShapeSpec((4,), pjrt.ElementType.F32))
        .ready()
        .exception()
    ),
    "attributes": lambda c, e: (c.devices[0].attributes, e.executable.cost_analysis(), e.executable.output_layouts),
    "managers": lambda c, e: c.create_buffers_for_async_host_to_device(
        [pjrt.ShapeSpec((4,), pjrt.ElementType.F32)]
    ).retrieve_buffer(0),
    "contexts": lambda c, e: c.create_execute_context().close(),
    "aliases": lambda c, e: c.create_alias_buffer(pjrt.ShapeSpec((4,), pjrt.ElementType.F32))[1].fulfill(
        c.buffer_from_host(X)
    ),
    "references": lambda c, e: c.buffer_from_host(X).external_reference().pointer,
    "raw": lambda c, e: c.buffer_from_host(X).raw().copy_to_host(bytearray(16)).result(),
    "layouts": lambda c, e: c.default_layout(pjrt.ElementType.F32, (8, 8)),
    "topologies": lambda c, e: c.topology.device_descriptions[0].attributes,
}


@pytest.mark.parametrize("what", most_in_full(REPEATED, {"execute with futures", "errors", "managers"}))
def test_nothing_is_left_of_what_is_done_often(
    plugin: pjrt.Plugin, adder: pjrt.Program, tiny_control: Control, what: str
) -> None:
    with plugin.client() as client:
        executable = client.compile(adder)
        gc.collect()
        before = tiny_control.live()
        # The last copy is done when all that was asked for before it is.
        blocks, _ = grows(
            lambda: REPEATED[what](client, executable), 300, lambda: client.buffer_from_host(X).to_host().result(60)
        )
        assert tiny_control.left_over(before) == {}
        assert blocks < 100, "each 300 left something behind"
