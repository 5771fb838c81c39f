"""Transfers of whole literals by a transfer manager."""

from __future__ import annotations

from typing import Any

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.api.errors import StatusCode
from pjrt.conformance.plugin.check import check
from pjrt.conformance.plugin.contract.buffers.buffer_calls import Array, outcome, ramp, supported, tiled
from pjrt.conformance.plugin.contract.transfers.async_transfers import CREATE, MANAGER, end, make_manager, retrieve
from pjrt.conformance.plugin.contract.transfers.transfer_managers import set_error
from pjrt.conformance.plugin.subject import Subject

LITERAL = f"{MANAGER}_TransferLiteral"
_CALLS = (CREATE, LITERAL)


def _fields(manager: int, array: Array, index: int = 0) -> dict[str, Any]:
    return {
        "transfer_manager": manager,
        "buffer_index": index,
        "data": array,
        "shape_dims": list(array.shape),
        "shape_element_type": int(ElementType.of(array.dtype)),
    }


@check(
    "transfer_literal.value",
    calls=_CALLS,
    rule="The buffer has the value of the literal, and is ready when it is transferred.",
    over={
        "rank_0": ramp(),
        "rank_1": ramp(7),
        "rank_3": ramp(2, 3, 4),
        "pred": np.array([True, False, True]),
        "u8": ramp(13, dtype=np.uint8),
        "f64": ramp(3, 3, dtype=np.float64),
        "c64": ramp(5, dtype=np.complex64),
        "empty": np.zeros((0, 3), np.float32),
        "large": ramp(1 << 20),
    },
)
def _value(subject: Subject, array: Array) -> None:
    subject.require(LITERAL)
    manager = make_manager(subject, (array.shape, int(ElementType.of(array.dtype))))
    buffer = retrieve(subject, manager)
    result = supported(subject, LITERAL, **_fields(manager, array))
    subject.await_event(result.done_with_h2d_transfer)
    subject.expect_contents(buffer, array)
    end(subject, manager, buffer)


@check(
    "transfer_literal.layout",
    calls=_CALLS,
    rule="shape_layout is the order of the elements in the memory of the literal.",
    over={"row_major": (1, 0), "column_major": (0, 1)},
)
def _layout(subject: Subject, order: tuple[int, int]) -> None:
    subject.require(LITERAL)
    array = ramp(3, 5)
    data = array if order == (1, 0) else np.ascontiguousarray(array.T)
    manager = make_manager(subject, ([3, 5], 11))
    buffer = retrieve(subject, manager)
    fields = {**_fields(manager, array), "data": data, "shape_layout": tiled(order)}
    result = supported(subject, LITERAL, **fields)
    subject.await_event(result.done_with_h2d_transfer)
    subject.expect_contents(buffer, array)
    end(subject, manager, buffer)


@check(
    "transfer_literal.several",
    calls=_CALLS,
    rule="Each buffer of a manager takes a literal of its own.",
)
def _several(subject: Subject) -> None:
    subject.require(LITERAL)
    arrays = [ramp(4) + number for number in range(4)]
    manager = make_manager(subject, *[([4], 11)] * 4)
    buffers = [retrieve(subject, manager, index) for index in range(4)]
    results = [supported(subject, LITERAL, **_fields(manager, arrays[index], index)) for index in (2, 0, 3, 1)]
    for result in results:
        subject.await_event(result.done_with_h2d_transfer)
    for array, buffer in zip(arrays, buffers, strict=True):
        subject.expect_contents(buffer, array)
    end(subject, manager, *buffers)


@check(
    "transfer_literal.memory_changed_after_done",
    calls=_CALLS,
    rule="Once done_with_h2d_transfer is ready, the memory of the literal is the caller's again.",
)
def _memory_changed_after_done(subject: Subject) -> None:
    subject.require(LITERAL)
    array = ramp(1 << 18)
    data = array.copy()
    manager = make_manager(subject, (array.shape, 11))
    buffer = retrieve(subject, manager)
    result = supported(subject, LITERAL, **_fields(manager, data))
    subject.await_event(result.done_with_h2d_transfer)
    data.fill(-1)
    subject.expect_contents(buffer, array)
    end(subject, manager, buffer)


@check(
    "transfer_literal.wrong_shape",
    calls=_CALLS,
    rule="A literal that is larger than the buffer is an error.",
    over=("more_elements", "wider_type"),
)
def _wrong_shape(subject: Subject, kind: str) -> None:
    subject.require(LITERAL)
    array = ramp(8) if kind == "more_elements" else ramp(7, dtype=np.float64)
    manager = make_manager(subject, ([7], 11))
    error = outcome(subject, LITERAL, "done_with_h2d_transfer", **_fields(manager, array))
    subject.expect(error is not None, "an error", "that it succeeded")
    end(subject, manager)


@check(
    "transfer_literal.wrong_index",
    calls=_CALLS,
    rule="An index that no buffer of the manager has is an error.",
    over=(-1, 1),
)
def _wrong_index(subject: Subject, index: int) -> None:
    subject.require(LITERAL)
    manager = make_manager(subject, ([7], 11))
    error = outcome(subject, LITERAL, "done_with_h2d_transfer", **_fields(manager, ramp(7), index))
    subject.expect(error is not None, "an error", "that it succeeded")
    end(subject, manager)


@check(
    "transfer_literal.after_error",
    calls=_CALLS,
    rule="A literal for a buffer with an error harms nothing.",
)
def _after_error(subject: Subject) -> None:
    subject.require(LITERAL)
    manager = make_manager(subject, ([7], 11))
    buffer = retrieve(subject, manager)
    set_error(subject, manager, 0, StatusCode.ABORTED)
    outcome(subject, LITERAL, "done_with_h2d_transfer", **_fields(manager, ramp(7)))
    end(subject, manager, buffer)
    subject.expect_contents(subject.buffer(ramp(4)), ramp(4))
