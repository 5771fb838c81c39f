"""Laws that hold for whatever arrays, layouts and orders of calls come along."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from anydevice import Backend
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pjrt.api.buffer import Buffer, HostBufferSemantics
from pjrt.api.client import Client
from pjrt.api.element_type import ElementType
from pjrt.api.errors import InvalidArgumentError, PjrtError, UnimplementedError
from pjrt.api.shape_spec import TiledLayout

DTYPES = [np.int8, np.uint16, np.int32, np.float32, np.float64, np.complex64, np.bool_]

usual = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    """Arrays of any strides: cut out of a larger one, turned around, with axes exchanged or repeated."""
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=4)))
    whole = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(draw(st.sampled_from(DTYPES)))
    steps = [draw(st.sampled_from([1, 1, 2, -1, -2])) for _ in shape]
    cut = whole[tuple(slice(None, None, step) for step in steps)]
    cut = cut.transpose(draw(st.permutations(range(cut.ndim))))
    if draw(st.booleans()):
        cut = np.broadcast_to(cut, (draw(st.integers(1, 3)), *cut.shape))
    return cut


@usual
@given(array=arrays(), semantics=st.sampled_from(HostBufferSemantics), data=st.data())
def test_what_goes_in_comes_out(
    client: Client, array: np.ndarray[Any, Any], semantics: HostBufferSemantics, data: st.DataObject
) -> None:
    if semantics is HostBufferSemantics.MUTABLE_ZERO_COPY and not array.flags.writeable:
        semantics = HostBufferSemantics.IMMUTABLE_ZERO_COPY
    order = data.draw(st.none() | st.permutations(range(array.ndim)))
    layout = None if order is None else TiledLayout(tuple(order))
    try:
        buffer = client.buffer_from_host(array, semantics=semantics, layout=layout)
    except UnimplementedError:
        assert layout is not None  # only a layout of one's own may be too much
        return
    assert (buffer.shape, buffer.dtype) == (array.shape, array.dtype)
    np.testing.assert_array_equal(buffer.to_host().result(60), array)
    out = np.zeros(array.shape, array.dtype, order=data.draw(st.sampled_from("CF")))
    np.testing.assert_array_equal(buffer.to_host(out).result(60), array)


@usual
@given(size=st.integers(0, 64), offset=st.integers(-8, 80), count=st.integers(-8, 80))
def test_raw_bytes_are_inside_or_refused(client: Client, size: int, offset: int, count: int) -> None:
    array = np.arange(size, dtype=np.uint8)
    buffer = client.buffer_from_host(array)
    out = bytearray(96)
    if offset >= 0 and count >= 0 and offset + count <= size:
        buffer.copy_raw_to_host(out, offset, count).result(60)
        assert bytes(out[:count]) == array.tobytes()[offset : offset + count]
        assert not any(out[count:])
    else:
        with pytest.raises(PjrtError):
            buffer.copy_raw_to_host(out, offset, count).result(60)
        assert not any(out)


@usual
@given(pieces=st.lists(st.integers(1, 7), min_size=1, max_size=8), data=st.data())
def test_pieces_in_any_order_make_the_whole(client: Client, pieces: list[int], data: st.DataObject) -> None:
    from pjrt.api.shape_spec import ShapeSpec

    whole = np.arange(sum(pieces), dtype=np.uint8)
    starts = [sum(pieces[:index]) for index in range(len(pieces))]
    order = data.draw(st.permutations(range(len(pieces))))
    with client.create_buffers_for_async_host_to_device([ShapeSpec(whole.shape, ElementType.U8)]) as manager:
        buffer = manager.retrieve_buffer(0)
        sent = [
            manager.transfer_data(
                0, whole[starts[index] : starts[index] + pieces[index]].copy(), starts[index],
                is_last_transfer=index == order[-1],
            )
            for index in order
        ]  # fmt: skip
        for future in sent:
            future.result(60)
        np.testing.assert_array_equal(buffer.to_host().result(60), whole)


class Model:
    """Buffers and the values that they should have, kept side by side while calls are made at random."""

    def __init__(self, backend: Backend, client: Client) -> None:
        self.client = client
        self.double = client.compile(backend.programs.double((4,)))
        self.in_place = client.compile(backend.programs.double((4,), donate=True))
        self.live: list[tuple[Buffer, np.ndarray[Any, Any]]] = []

    def step(self, action: str, place: int) -> None:
        """Do one thing to one of the buffers."""
        if action == "put" or not self.live:
            value = np.full(4, place, np.float32)
            self.live.append((self.client.buffer_from_host(value), value))
            return
        index = place % len(self.live)
        buffer, value = self.live[index]
        match action:
            case "double":
                self.live.append((self.double(buffer)[0], value * 2))
            case "in place":
                self.live[index] = (self.in_place(buffer)[0], value * 2)
                assert buffer.is_deleted
            case "copy":
                self.live.append((buffer.copy_to(buffer.device), value))
            case "read":
                np.testing.assert_array_equal(buffer.to_host().result(60), value)
            case "delete":
                buffer.delete()
                del self.live[index]
            case "drop":
                del self.live[index]
            case "read later":
                future = buffer.to_host()
                self.live.append((self.double(buffer)[0], value * 2))
                np.testing.assert_array_equal(future.result(60), value)


ACTIONS = ("put", "double", "in place", "copy", "read", "delete", "drop", "read later")


@settings(usual, max_examples=25)
@given(steps=st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 9)), max_size=30))
def test_buffers_have_their_values_whatever_is_done(
    backend: Backend, client: Client, steps: list[tuple[str, int]]
) -> None:
    model = Model(backend, client)
    for action, place in steps:
        model.step(action, place)
    for buffer, value in model.live:
        np.testing.assert_array_equal(buffer.to_host().result(60), value)


@usual
@given(shape=st.lists(st.integers(0, 4), max_size=3), other=st.lists(st.integers(0, 4), max_size=3))
def test_arguments_have_the_shape_of_the_parameter(
    backend: Backend, client: Client, shape: list[int], other: list[int]
) -> None:
    assume(shape == other or math.prod(shape) != 1 or math.prod(other) != 1)  # the runtime in C takes one for a scalar
    executable = client.compile(backend.programs.double(tuple(shape)))
    x = np.ones(other, np.float32)
    if shape == other:
        np.testing.assert_array_equal(np.asarray(executable(x)[0]), x * 2)
    else:
        with pytest.raises((InvalidArgumentError, PjrtError)):
            executable(x)[0].to_host().result(60)
