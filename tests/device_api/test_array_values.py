"""Buffers as values of Python: numbers, lists, indexing, iteration, asyncio and notebooks."""

from __future__ import annotations

import asyncio
import math
import operator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from anydevice import Backend
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from pjrt.api.buffer import Buffer
from pjrt.api.client import Client
from pjrt.api.element_type import ElementType
from pjrt.api.errors import FailedPreconditionError, InternalError, InvalidArgumentError, PjrtError
from pjrt.api.shape_spec import ShapeSpec

ARRAY = np.arange(6, dtype=np.float32).reshape(2, 3)

CONVERSIONS = {
    "item": lambda b: b.item(),
    "tolist": lambda b: b.tolist(),
    "float": float,
    "int": int,
    "complex": complex,
    "bool": bool,
    "getitem": lambda b: b[()],
    "asarray": np.asarray,
    "await": lambda b: asyncio.run(_awaited(b)),
}


async def _awaited(buffer: Buffer) -> Buffer:
    return await buffer


def test_a_number_becomes_a_number_of_python(client: Client) -> None:
    buffer = client.buffer_from_host(np.float32(2.5))
    assert (buffer.item(), float(buffer), int(buffer), complex(buffer)) == (2.5, 2.5, 2, 2.5 + 0j)
    assert type(buffer.item()) is float
    assert bool(buffer)
    assert not client.buffer_from_host(np.zeros((1, 1), np.float32))
    index = client.buffer_from_host(np.int32(2))
    assert operator.index(index) == 2
    assert [10, 20, 30][index] == 30
    assert type(index.item()) is int
    assert client.buffer_from_host(np.array([[7]], np.int32)).item() == 7


@pytest.mark.full
def test_the_numbers_of_every_type_are_pythons(backend: Backend, client: Client) -> None:
    for kind in ElementType:
        if kind in (ElementType.INVALID, ElementType.TOKEN) or kind.bits == 1 or kind in backend.element_types_left_out:
            continue
        try:
            buffer = client.buffer_from_host(np.array([1, 1]).astype(kind.dtype))
        except PjrtError:
            continue  # a device without the type
        expected: Any = (
            True if kind is ElementType.PRED else 1 if kind.is_integer else 1 + 0j if kind.is_complex else 1.0
        )
        assert buffer.tolist() == [expected, expected]
        assert type(buffer.tolist()[0]) is type(expected), kind
        assert buffer.nbytes == 2 * kind.dtype.itemsize


@given(st.data())
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_lists_lengths_and_items_are_numpys(client: Client, data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from([np.float32, np.int32, np.int8, np.bool_, np.complex64]))
    array = data.draw(arrays(dtype, array_shapes(min_dims=0, max_dims=3, max_side=3)))
    buffer = client.buffer_from_host(array)
    np.testing.assert_equal(buffer.tolist(), array.tolist())
    assert buffer.nbytes == array.nbytes
    if array.ndim:
        assert len(buffer) == len(array)
        np.testing.assert_equal(list(buffer), list(array))
        np.testing.assert_equal(buffer[-1], array[-1])
        np.testing.assert_equal(buffer[..., ::-1], array[..., ::-1])


def test_items_are_numpys_and_cannot_be_assigned(client: Client) -> None:
    buffer = client.buffer_from_host(ARRAY)
    assert isinstance(buffer[0], np.ndarray)
    assert isinstance(buffer[0, 1], np.float32)
    np.testing.assert_array_equal(buffer[ARRAY > 2], [3, 4, 5])
    with pytest.raises(IndexError):
        buffer[2]
    with pytest.raises(TypeError):
        buffer[0] = 1  # type: ignore[index]
    assert 3.0 in buffer
    assert [row.tolist() for row in buffer] == ARRAY.tolist()


def test_several_elements_are_no_number(client: Client) -> None:
    buffer = client.buffer_from_host(ARRAY)
    with pytest.raises(InvalidArgumentError, match=r"one element, found f32\[2,3\]; use array\[index\]"):
        buffer.item()
    with pytest.raises(ValueError, match="one element"):
        bool(buffer)
    for kind in (float, int, complex):
        with pytest.raises(TypeError, match=rf"a Python {kind.__name__}, found f32\[2,3\]"):
            kind(buffer)
    with pytest.raises(TypeError, match="is an index, found f32"):
        operator.index(client.buffer_from_host(np.float32(1)))
    with pytest.raises(TypeError, match="is an index"):
        operator.index(client.buffer_from_host(np.array([1], np.int32)))
    scalar = client.buffer_from_host(np.float32(1))
    with pytest.raises(TypeError, match="has no length"):
        len(scalar)
    with pytest.raises(TypeError, match="cannot be iterated over"):
        iter(scalar)
    with pytest.raises(TypeError):
        float(client.buffer_from_host(np.complex64(1j)))


@pytest.mark.parametrize("conversion", CONVERSIONS.values(), ids=CONVERSIONS)
def test_a_deleted_buffer_has_no_value(client: Client, conversion: Any) -> None:
    buffer = client.buffer_from_host(np.float32(1))
    buffer.delete()
    with pytest.raises(FailedPreconditionError):
        conversion(buffer)
    assert "deleted" in buffer._repr_html_()
    assert buffer.nbytes == 4


@pytest.mark.parametrize("conversion", CONVERSIONS.values(), ids=CONVERSIONS)
def test_a_failed_buffer_raises_the_error_of_its_computation(client: Client, conversion: Any) -> None:
    buffer = client.create_error_buffer(InternalError("the <computation> failed"), ShapeSpec((), ElementType.F32))
    with pytest.raises(InternalError, match="the <computation> failed"):
        conversion(buffer)
    assert "failed: INTERNAL: the &lt;computation&gt; failed" in buffer._repr_html_()


def test_awaiting_gives_the_buffer_itself(client: Client) -> None:
    buffer = client.buffer_from_host(ARRAY)

    async def both() -> None:
        assert await buffer is buffer
        first, second = await asyncio.gather(_awaited(buffer), _awaited(client.buffer_from_host(ARRAY)))
        assert first is buffer
        np.testing.assert_array_equal(second, ARRAY)

    asyncio.run(both())


@pytest.fixture
def patient_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a notebook wait for the copy to the host, however slow the machine is."""
    monkeypatch.setattr("pjrt.api.buffer._COPY_SECONDS", 120.0)


@pytest.mark.usefixtures("patient_notebook")
def test_a_notebook_shows_type_place_and_values(client: Client) -> None:
    buffer = client.buffer_from_host(ARRAY)
    buffer.ready().result()
    shown = buffer._repr_html_()
    assert "f32[2,3] on" in shown
    assert "&lt;" in shown
    assert "<pre>[[0., 1., 2.],\n [3., 4., 5.]]</pre>" in shown
    large = client.buffer_from_host(np.zeros((300, 300), np.float32))
    large.ready().result()
    assert "<pre>" not in large._repr_html_()


@pytest.mark.usefixtures("patient_notebook")
def test_a_notebook_does_not_wait(client: Client) -> None:
    alias, fulfillment = client.create_alias_buffer(ShapeSpec((2,), ElementType.F32))
    assert "not ready" in alias._repr_html_()
    fulfillment.fulfill(client.buffer_from_host(np.array([1, 2], np.float32)))
    alias.ready().result()
    assert "[1., 2.]" in alias._repr_html_()


def test_a_buffer_is_no_list_of_arguments(backend: Backend, client: Client) -> None:
    executable = client.compile(backend.programs.identity((2, 3)))
    with pytest.raises(InvalidArgumentError, match="a list of buffers"):
        executable.execute_sharded(client.buffer_from_host(ARRAY), client.addressable_devices[0])


def test_bfloat16_numbers(client: Client) -> None:
    buffer = client.buffer_from_host(np.array([1.5, math.inf], ml_dtypes.bfloat16))
    assert buffer.tolist() == [1.5, math.inf]
