"""Values of a wrong Python type: refused when the value is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pjrt
from pjrt.api.checks import expect, expect_array, expect_bytes, expect_callable, expect_int, expect_out, expect_sequence
from pjrt.api.loaded_executable import ExecuteOptions, SendCallback
from pjrt.api.shape_spec import StridedLayout, TiledLayout

F32 = pjrt.ElementType.F32
make: Any = pjrt
made: Any = ExecuteOptions
tiled: Any = TiledLayout

WRONG: dict[str, Callable[[], object]] = {
    "program": lambda: make.Program(3),
    "program's format": lambda: make.Program(b"x", 3),
    "num_replicas": lambda: make.CompileOptions(num_replicas="2"),
    "num_replicas, a bool": lambda: make.CompileOptions(num_replicas=True),
    "device_ordinal": lambda: make.CompileOptions(device_ordinal="x"),
    "flag": lambda: make.CompileOptions(use_shardy_partitioner="no"),
    "use_spmd_partitioning": lambda: make.CompileOptions(use_spmd_partitioning=1),
    "flags": lambda: make.CompileOptions(allow_spmd_sharding_propagation_to_output=True),
    "base": lambda: make.CompileOptions(base=3),
    "overrides": lambda: make.CompileOptions(option_overrides=3),
    "override's name": lambda: make.CompileOptions(option_overrides={3: "x"}),
    "options' assignment": lambda: make.CompileOptions(device_assignment=3),
    "compile options": lambda: make.CompileOptions.of({}),
    "compile options' proto": lambda: make.CompileOptions.from_proto(3),
    "assignment": lambda: make.DeviceAssignment(3),
    "assignment's ids": lambda: make.DeviceAssignment((("a",),)),
    "assignment of text": lambda: make.DeviceAssignment.of("ab"),
    "assignment of a number": lambda: make.DeviceAssignment.of(3),
    "assignment in order": lambda: make.DeviceAssignment.in_order([1], "1", 1),
    "assignment's proto": lambda: make.DeviceAssignment.from_proto("text"),
    "launch_id": lambda: made(launch_id="x"),
    "kept": lambda: made(non_donatable_input_indices=3),
    "kept names": lambda: made(non_donatable_input_indices={"a"}),
    "sends": lambda: made(send_callbacks=3),
    "sends' rows": lambda: made(send_callbacks=[3]),
    "a send": lambda: made(send_callbacks=[[3]]),
    "a receive": lambda: made(recv_callbacks=[[SendCallback(1, print)]]),
    "outputs": lambda: made(hlo_output_callbacks=[3]),
    "context": lambda: made(context=3),
    "location": lambda: made(call_location=3),
    "tasks": lambda: made(task_incarnations=3),
    "tasks' numbers": lambda: made(task_incarnations={"a": 1}),
    "execute options": lambda: ExecuteOptions.of(3),  # type: ignore[arg-type]
    "shape": lambda: make.ShapeSpec(3, F32),
    "shape's sizes": lambda: make.ShapeSpec(("a",), F32),
    "shape of halves": lambda: make.ShapeSpec((2.5,), F32),
    "shape's type": lambda: make.ShapeSpec((2,), object()),
    "shape's layout": lambda: make.ShapeSpec((2,), F32, 3),
    "shape of a number": lambda: make.ShapeSpec.of(3),
    "tiled": lambda: tiled(3),
    "tiled by names": lambda: tiled(("a",)),
    "tiles": lambda: tiled((0,), 3),
    "a tile": lambda: tiled((0,), (3,)),
    "spelled": lambda: tiled.parse(3),
    "strided": lambda: StridedLayout(3),  # type: ignore[arg-type]
    "element type": lambda: make.ElementType.of(3),
    "element type's spelling": lambda: make.ElementType.from_mlir([]),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_types_are_refused(name: str) -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match=r"found|is not an element type"):
        WRONG[name]()


def test_what_is_like_the_right_type_becomes_it() -> None:
    assert pjrt.ShapeSpec([np.int64(2), 3], F32).shape == (2, 3)  # type: ignore[list-item]
    assert tiled([1, 0], [[8, 128]]) == TiledLayout((1, 0), ((8, 128),))
    assert made(non_donatable_input_indices=[1, np.int32(2)]).non_donatable_input_indices == frozenset({1, 2})
    assert make.CompileOptions(allow_spmd_sharding_propagation_to_output=[True]) == make.CompileOptions(
        allow_spmd_sharding_propagation_to_output=(True,)
    )
    assert make.DeviceAssignment([[1], [2]]).device_ids == ((1,), (2,))
    assert make.DeviceAssignment.of(np.array([[1], [2]])).device_ids == ((1,), (2,))
    assert make.CompileOptions.of(None) == make.CompileOptions()
    assert ExecuteOptions.of(None) == ExecuteOptions()


def test_checks_give_the_argument_back() -> None:
    assert expect(3, int, "a number") == 3
    assert expect_int(np.uint8(3), "a number") == 3
    assert expect_bytes(memoryview(b"x"), "bytes") == b"x"
    assert expect_callable(print, "a function") is print
    assert list(expect_sequence(range(2), "numbers")) == [0, 1]
    assert expect_array([1, 2]).tolist() == [1, 2]


@pytest.mark.parametrize(
    "call",
    [
        lambda: expect("x", int, "a number"),
        lambda: expect_int(True, "a number"),
        lambda: expect_int(1.0, "a number"),
        lambda: expect_bytes("text", "a number"),
        lambda: expect_callable(3, "a number"),
        lambda: expect_sequence("text", "a number"),
    ],
)
def test_the_message_says_what_was_expected_and_found(call: Callable[[], object]) -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match=r"^INVALID_ARGUMENT: expected a number, found .* of type \w+$"):
        call()


def test_a_long_value_is_cut_in_the_message() -> None:
    with pytest.raises(pjrt.InvalidArgumentError) as caught:
        expect("x" * 1000, int, "a number")
    assert len(caught.value.message) < 150


def test_an_array_to_copy_to_is_writable_and_of_the_shape_and_dtype() -> None:
    out = np.zeros((2, 3), np.int16)
    assert expect_out(out, (2, 3), np.dtype(np.int16)) is out
    read_only = np.zeros((2, 3), np.int16)
    read_only.setflags(write=False)
    for wrong, found in (
        (read_only, r"a read-only array of int16\[2, 3\]"),
        (out.T, r"a writable array of int16\[3, 2\]"),
        (out.astype(np.int32), r"a writable array of int32\[2, 3\]"),
        ([1, 2], "type list"),
    ):
        with pytest.raises(pjrt.InvalidArgumentError, match=rf"expected a writable array of int16\[2, 3\] .* {found}"):
            expect_out(wrong, (2, 3), np.dtype(np.int16))
