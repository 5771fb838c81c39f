"""Arguments of another shape than the program's, as frameworks give them to any plugin of the C API."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pjrt
from pjrt import native
from pjrt.api.element_type import ElementType
from pjrt.capi import raw
from pjrt.conformance.plugin.samples import Samples
from pjrt.conformance.plugin.subject import Subject


@pytest.fixture(params=["here", "worker"])
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Subject]:
    owner: Any = None
    if request.param == "here":
        owner = pjrt.export(lambda **options: pjrt.client("reference", **options), name="here")
        plugin = raw.Plugin(owner.address, owner)
    else:
        maker = "pjrt.devices.reference.plugin:ReferencePlugin"
        plugin = raw.load(native.write_library(tmp_path / "reference.so", maker, driver="worker", name="reference"))
    subject = Subject(plugin, {"num_devices": 1}, Samples(""))
    yield subject
    subject.call("PJRT_Client_Destroy", client=subject.client)


def compiled(subject: Subject, type_: str, argument: str = "") -> int:
    text = f"""
module {{ func.func @main(%x: {type_} {argument}) -> {type_} {{
  %y = stablehlo.add %x, %x : {type_}
  return %y : {type_}
}} }}"""
    program = raw.Struct("PJRT_Program", code=text.encode(), format=b"mlir")
    result = subject.attempt_compile(program)
    assert result.error is None, result.error
    return int(result.executable)


SAME = [
    (np.array([3.5], np.float32), "tensor<f32>", np.float32(7)),
    (np.array(3, np.int64), "tensor<1xi64>", np.array([6], np.int64)),
    (np.array([[7]], np.int32), "tensor<1xi32>", np.array([14], np.int32)),
]


@pytest.mark.parametrize(("array", "type_", "expected"), SAME)
def test_one_element_is_taken_in_the_programs_shape(
    subject: Subject, array: np.ndarray, type_: str, expected: np.ndarray
) -> None:
    sizes = "".join(f"{size}x" for size in array.shape)
    own = compiled(subject, f"tensor<{sizes}{ElementType.of(array.dtype).mlir}>")
    buffer = subject.buffer(array)
    other = compiled(subject, type_)
    for _ in range(3):  # from bytes; from an array of the other shape; and again with the first shape
        ((result,),) = subject.execute(other, [[buffer]])
        np.testing.assert_array_equal(subject.read(result), expected)
        ((kept,),) = subject.execute(own, [[buffer]])
        assert subject.read(kept).shape == array.shape
        ((again,),) = subject.execute(other, [[kept]])
        np.testing.assert_array_equal(subject.read(again), 2 * expected)


def test_a_donated_argument_of_another_shape(subject: Subject) -> None:
    executable = compiled(subject, "tensor<f32>", "{tf.aliasing_output = 0 : i32}")
    own = compiled(subject, "tensor<1xf32>")
    ((buffer,),) = subject.execute(own, [[subject.buffer(np.float32([2]))]])
    ((result,),) = subject.execute(executable, [[buffer]])
    assert subject.read(result) == 8
    assert subject.call("PJRT_Buffer_IsDeleted", buffer=buffer).is_deleted
    ((twice,),) = subject.execute(own, [[result]])
    np.testing.assert_array_equal(subject.read(twice), [16])


@pytest.mark.parametrize(
    ("array", "type_"),
    [
        (np.ones(2, np.float32), "tensor<f32>"),
        (np.ones(1, np.int32), "tensor<f32>"),
        (np.ones((2, 3)), "tensor<3x2xf64>"),
        (np.ones(3), "tensor<2xf64>"),
    ],
)
def test_others_are_refused(subject: Subject, array: np.ndarray, type_: str) -> None:
    result = subject.attempt_execute(compiled(subject, type_), [[subject.buffer(array)]])
    assert result.error is not None
    assert result.error.message.startswith("argument 0: expected ")
