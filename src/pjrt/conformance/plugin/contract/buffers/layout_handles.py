"""Layouts as handles (the extension Layouts)."""

from __future__ import annotations

import ctypes
import re

from pjrt.conformance.plugin.check import check
from pjrt.conformance.plugin.contract.buffers.buffer_calls import MISUSE, ramp, supported, supported_from_host, tiled
from pjrt.conformance.plugin.subject import Subject

SERIALIZE, DESTROY = "PJRT_Layouts_MemoryLayout_Serialize", "PJRT_Layouts_MemoryLayout_Destroy"
OF_BUFFER, DEFAULT = "PJRT_Layouts_PJRT_Buffer_MemoryLayout", "PJRT_Layouts_PJRT_Client_GetDefaultLayout"
OF_TOPOLOGY = "PJRT_Layouts_PJRT_Topology_GetDefaultLayout"
_CALLS = (SERIALIZE, DESTROY)


def layout_text(subject: Subject, layout: int | None) -> str:
    """Return the text of a layout, such as ``{1,0}``, and free what has it; the layout stays."""
    subject.expect(layout, "a layout", "a null pointer")
    result = subject.call(SERIALIZE, layout=layout)
    subject.expect(result.serialized_layout_deleter, "a deleter", "a null pointer")
    text = bytes(result.serialized_bytes or b"").decode()
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(result.serialized_layout_deleter)(result.serialized_layout)
    return text


def _order(text: str) -> list[int]:
    """Return the dimensions of a layout's text, from minor to major."""
    match = re.match(r"\{([\d,]*)", text)
    return [] if match is None or not match[1] else [int(each) for each in match[1].split(",")]


def _default(subject: Subject, dims: list[int], number: int = 11) -> str:
    subject.require_extension("Layouts")
    layout = supported(subject, DEFAULT, client=subject.client, type=number, dims=dims).layout
    text = layout_text(subject, layout)
    subject.call(DESTROY, layout=layout)
    return text


@check(
    "layouts.default",
    calls=(DEFAULT, *_CALLS),
    rule="The default layout of a client has each dimension once.",
    over={"rank_0": [], "rank_1": [7], "rank_2": [3, 5], "rank_4": [2, 3, 4, 5]},
)
def _default_layout(subject: Subject, dims: list[int]) -> None:
    text = _default(subject, dims)
    subject.expect(sorted(_order(text)) == list(range(len(dims))), f"an order of {len(dims)} dimensions", text)


@check(
    "layouts.default_of_each_type",
    calls=(DEFAULT, *_CALLS),
    rule="There is a default layout for each type.",
    over={"pred": 1, "s8": 2, "u16": 7, "s64": 5, "f16": 10, "bf16": 13, "c128": 15},
)
def _default_of_each_type(subject: Subject, number: int) -> None:
    text = _default(subject, [3, 5], number)
    subject.expect(sorted(_order(text)) == [0, 1], "an order of 2 dimensions", text)


@check(
    "layouts.default_of_topology",
    calls=(OF_TOPOLOGY, *_CALLS),
    rule="The client's topology has the client's default layouts.",
)
def _default_of_topology(subject: Subject) -> None:
    expected = _default(subject, [3, 5])
    subject.require("PJRT_Client_TopologyDescription")
    topology = subject.call("PJRT_Client_TopologyDescription", client=subject.client).topology
    layout = supported(subject, OF_TOPOLOGY, topology_description=topology, type=11, dims=[3, 5]).layout
    text = layout_text(subject, layout)
    subject.expect(text == expected, expected, text)
    subject.call(DESTROY, layout=layout)


@check(
    "layouts.of_buffer",
    calls=(OF_BUFFER, *_CALLS),
    rule="The layout of a buffer of host data is dense and in major-to-minor order, unless the caller chooses another.",
    over={"rank_0": (), "rank_1": (7,), "rank_2": (3, 5), "rank_3": (2, 3, 4)},
)
def _of_buffer(subject: Subject, dims: tuple[int, ...]) -> None:
    subject.require_extension("Layouts")
    buffer = subject.buffer(ramp(*dims))
    layout = supported(subject, OF_BUFFER, buffer=buffer).layout
    text = layout_text(subject, layout)
    expected = list(range(len(dims)))[::-1]
    subject.expect(_order(text) == expected, f"the order {expected}", text)
    subject.call(DESTROY, layout=layout)
    subject.destroy_buffers(buffer)


@check(
    "layouts.of_buffer_with_a_layout",
    calls=(OF_BUFFER, *_CALLS),
    rule="The layout of a buffer is the one that it was made with.",
    over={"column_major": ((3, 5), (0, 1)), "mixed": ((2, 3, 4), (1, 2, 0))},
)
def _of_buffer_with_a_layout(subject: Subject, case: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    subject.require_extension("Layouts")
    dims, order = case
    array = ramp(*dims)
    result = supported_from_host(subject, array, device_layout=tiled(order))
    subject.await_event(result.done_with_host_buffer)
    layout = supported(subject, OF_BUFFER, buffer=result.buffer).layout
    text = layout_text(subject, layout)
    subject.expect(_order(text) == list(order), f"the order {list(order)}", text)
    subject.call(DESTROY, layout=layout)
    subject.destroy_buffers(result.buffer)


@check(
    "layouts.outlives_its_buffer",
    calls=(OF_BUFFER, *_CALLS, "PJRT_Buffer_Destroy"),
    rule="A layout belongs to the caller: it lives until the caller destroys it.",
)
def _outlives_its_buffer(subject: Subject) -> None:
    subject.require_extension("Layouts")
    buffer = subject.buffer(ramp(2, 3, 4))
    layout = supported(subject, OF_BUFFER, buffer=buffer).layout
    before = layout_text(subject, layout)
    subject.destroy_buffers(buffer)
    for size in range(1, 30):
        subject.destroy_buffers(subject.buffer(ramp(size, 2)))
    after = layout_text(subject, layout)
    subject.expect(after == before, before, after)
    subject.call(DESTROY, layout=layout)


@check(
    "layouts.serialized_often", calls=(DEFAULT, *_CALLS), rule="Each text of a layout is an object of the caller's own."
)
def _serialized_often(subject: Subject) -> None:
    subject.require_extension("Layouts")
    layout = supported(subject, DEFAULT, client=subject.client, type=11, dims=[3, 5]).layout
    results = [subject.call(SERIALIZE, layout=layout) for _ in range(4)]
    subject.call(DESTROY, layout=layout)
    texts = {bytes(each.serialized_bytes) for each in results}
    subject.expect(len(texts) == 1, "the same text each time", str(texts))
    for each in results:
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(each.serialized_layout_deleter)(each.serialized_layout)


@check(
    "layouts.wrong",
    calls=(DEFAULT,),
    rule="There is no default layout of a shape that no array has.",
    over={"unknown_type": {"type": 4711}, "negative_dimension": {"dims": [-3]}},
)
def _wrong(subject: Subject, change: dict[str, object]) -> None:
    _default(subject, [3])
    subject.fails(DEFAULT, MISUSE, **{"client": subject.client, "type": 11, "dims": [3], **change})
