"""No leak: neither on the plugin's side, which counts its objects, nor on Python's, which counts its blocks."""

from __future__ import annotations

import gc
import resource
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from tiny.control import Control

import pjrt
from pjrt.api.client import Client

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


def test_a_million_executions(noop_library: Path) -> None:
    with pjrt.load_plugin(noop_library).client() as client:
        executable = client.compile(pjrt.Program(b"nothing", format="nothing"))
        buffer, device = client.buffer_from_host(np.float32(0)), client.devices[0]
        arguments = [buffer]
        blocks, kilobytes = grows(lambda: executable.execute_sharded(arguments, device), 250_000, gc.collect)
    assert blocks < 100, "each quarter of a million left Python objects behind"
    assert kilobytes < 1000, "each quarter of a million left memory behind"


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


@pytest.mark.parametrize("what", REPEATED)
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
