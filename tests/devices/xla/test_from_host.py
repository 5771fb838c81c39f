"""From the host's memory to buffers and back: element types, strides, and the host buffer semantics."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import pjrt
from pjrt import HostBufferSemantics
from pjrt.stablehlo.encodings.jaxlib import version

WITH_VALUES = [t for t in pjrt.ElementType if t.name not in ("INVALID", "TOKEN", "S1", "U1")]
COPIES = (HostBufferSemantics.IMMUTABLE_ONLY_DURING_CALL, HostBufferSemantics.IMMUTABLE_UNTIL_TRANSFER_COMPLETES)
ZERO_COPIES = (HostBufferSemantics.IMMUTABLE_ZERO_COPY, HostBufferSemantics.MUTABLE_ZERO_COPY)


def aligned(count: int, dtype: Any = np.float32, offset: int = 0) -> np.ndarray[Any, Any]:
    """An array that begins a number of bytes after a multiple of 64."""
    itemsize = np.dtype(dtype).itemsize
    raw = np.zeros(count * itemsize + 128, np.uint8)
    start = -raw.ctypes.data % 64 + offset
    return raw[start : start + count * itemsize].view(dtype)


@pytest.mark.parametrize("element_type", WITH_VALUES, ids=lambda t: t.name)
def test_every_element_type(client: pjrt.Client, programs: Any, element_type: pjrt.ElementType) -> None:
    if element_type.name.startswith("F6") and version() < (0, 11):
        pytest.skip("jaxlib before 0.11 has no floats of six bits")
    values = np.array([1, 0, 1, 1, 0], np.float32).astype(element_type.dtype)
    buffer = client.buffer_from_host(values)
    assert buffer.element_type is element_type
    assert buffer.dtype == values.dtype
    assert buffer.on_device_size in (5, 5 * values.itemsize, -(-5 * element_type.bits // 8))
    assert np.asarray(buffer).tobytes() == values.tobytes()
    if not element_type.name.startswith(("F6", "F4")):  # XLA's CPU compiler has no code for these
        (result,) = client.compile(programs.identity(f"5x{element_type.mlir}"))(buffer)
        assert result.element_type is element_type
        assert np.asarray(result).tobytes() == values.tobytes()


def test_a_type_jaxlib_lacks_is_an_error(client: pjrt.Client) -> None:
    if version() >= (0, 11):
        pytest.skip("this jaxlib has all types")
    with pytest.raises(pjrt.InvalidArgumentError, match="Unknown NumPy dtype"):
        client.buffer_from_host(np.zeros(3, pjrt.ElementType.F6E2M3FN.dtype))


@settings(deadline=None, max_examples=60)
@given(
    array=hnp.arrays(
        st.sampled_from([np.dtype(d) for d in ("bool", "i1", "u2", "i4", "u8", "f2", "f4", "f8", "c8", "c16")]),
        hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5),
    ),
    data=st.data(),
)
def test_any_strides(client: pjrt.Client, array: np.ndarray[Any, Any], data: st.DataObject) -> None:
    axes = data.draw(st.permutations(range(array.ndim)))
    steps = tuple(slice(None, None, data.draw(st.sampled_from([1, 2, -1, -2]))) for _ in axes)
    strided = array.transpose(axes)[steps]
    semantics = data.draw(st.sampled_from(list(HostBufferSemantics)))
    buffer = client.buffer_from_host(strided, semantics=semantics)
    assert buffer.shape == strided.shape
    assert np.asarray(buffer).tobytes() == strided.tobytes()


def test_foreign_byte_order_and_python_values(client: pjrt.Client) -> None:
    swapped = np.arange(3, dtype=">i4")
    assert np.asarray(client.buffer_from_host(swapped)).tolist() == [0, 1, 2]
    assert client.buffer_from_host([1.5, 2.5]).dtype == np.float64
    assert client.buffer_from_host(3).shape == ()
    for wrong in (["a"], [object()], np.zeros(2, "M8[s]"), np.zeros(2, "f4,i4")):
        with pytest.raises(pjrt.InvalidArgumentError, match="is not an element type of PJRT"):
            client.buffer_from_host(wrong)


@pytest.mark.parametrize("count", [16, 1 << 18])
@pytest.mark.parametrize("semantics", COPIES)
def test_copies_where_a_copy_is_due(client: pjrt.Client, semantics: HostBufferSemantics, count: int) -> None:
    array = aligned(count)
    array[:] = 1
    buffer = client.buffer_from_host(array, semantics=semantics)
    if semantics is HostBufferSemantics.IMMUTABLE_UNTIL_TRANSFER_COMPLETES:
        buffer.ready().result()
    array[:] = 2
    assert buffer.unsafe_pointer() != array.ctypes.data
    assert np.asarray(buffer).max() == 1


@pytest.mark.parametrize("semantics", ZERO_COPIES)
@pytest.mark.parametrize("count", [16, 1 << 18])
def test_no_copy_where_none_is_due(client: pjrt.Client, semantics: HostBufferSemantics, count: int) -> None:
    array = aligned(count)
    buffer = client.buffer_from_host(array, semantics=semantics)
    assert buffer.unsafe_pointer() == array.ctypes.data
    view = np.asarray(buffer)
    assert view.ctypes.data == array.ctypes.data
    assert not view.flags.writeable


@pytest.mark.parametrize("semantics", ZERO_COPIES)
def test_a_donation_does_not_write_to_lent_memory(
    client: pjrt.Client, programs: Any, semantics: HostBufferSemantics
) -> None:
    """Nor where it would be allowed to: XLA takes new memory for the result."""
    array = aligned(4)
    array[:] = 5
    buffer = client.buffer_from_host(array, semantics=semantics)
    (result,) = client.compile(programs.add_in_place)(buffer, array)
    assert np.asarray(result).tolist() == [10.0] * 4
    assert array.tolist() == [5.0] * 4


@pytest.mark.full
@pytest.mark.parametrize("semantics", list(HostBufferSemantics))
@pytest.mark.parametrize("offset", [0, 4])
@pytest.mark.parametrize("count", [16, 1 << 18])
@pytest.mark.parametrize("end", ["delete", "drop"])
def test_the_owner_is_told_exactly_once(
    client: pjrt.Client, semantics: HostBufferSemantics, offset: int, count: int, end: str
) -> None:
    array = aligned(count, offset=offset)
    told: list[int] = []
    done: pjrt.Promise[None] = pjrt.Promise()

    def tell() -> None:
        told.append(1)
        if len(told) == 1:
            done.set_result(None)

    buffer = client.buffer_from_host(array, semantics=semantics, on_done_with_host_buffer=tell)
    assert np.asarray(buffer)[0] == 0
    shared = buffer.unsafe_pointer() == array.ctypes.data
    assert shared == (semantics in ZERO_COPIES and offset == 0)
    if shared:
        gc.collect()
        assert told == []
    if semantics is HostBufferSemantics.IMMUTABLE_ONLY_DURING_CALL:
        assert told == [1], "before the call returned"
    if end == "delete":
        buffer.delete()
    del buffer
    done.future.result(timeout=120)
    gc.collect()
    assert told == [1]


def test_the_owner_is_told_only_when_nobody_reads(client: pjrt.Client, hold: Callable[..., Any]) -> None:
    array = aligned(512 * 512)
    array[:: 512 + 1] = 1
    done: pjrt.Promise[None] = pjrt.Promise()
    buffer = client.buffer_from_host(
        array.reshape(512, 512),
        semantics=HostBufferSemantics.IMMUTABLE_ZERO_COPY,
        on_done_with_host_buffer=lambda: done.set_result(None),
    )
    held = hold(buffer)
    buffer.delete()
    del buffer
    gc.collect()
    assert not done.future.done()
    held.let_go()
    done.future.result(timeout=120)
    assert np.asarray(held.result)[7, 7] == 1


def test_a_view_on_the_host_keeps_lent_memory_in_use(client: pjrt.Client) -> None:
    told: list[int] = []
    done: pjrt.Promise[None] = pjrt.Promise()
    buffer = client.buffer_from_host(
        aligned(16),
        semantics=HostBufferSemantics.IMMUTABLE_ZERO_COPY,
        on_done_with_host_buffer=lambda: (told.append(1), done.set_result(None)),
    )
    view = np.asarray(buffer)
    buffer.delete()
    gc.collect()
    assert told == []
    assert view[0] == 0
    del view, buffer
    done.future.result(timeout=120)


def test_a_release_callback_that_raises_goes_no_further(client: pjrt.Client, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise KeyError("oops")

    client.buffer_from_host(np.ones(4), on_done_with_host_buffer=fail)
    assert "oops" in caplog.text


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (pjrt.TiledLayout((1, 0), ((8, 128),)), "without tiles"),
        (pjrt.TiledLayout((2, 1, 0)), r"found \{2,1,0\} of 3"),
        (pjrt.StridedLayout((100, 4)), "with gaps"),
    ],
)
def test_layouts_that_do_not_fit(client: pjrt.Client, layout: pjrt.Layout, message: str) -> None:
    with pytest.raises(pjrt.PjrtError, match=message):
        client.buffer_from_host(np.ones((2, 3), np.float32), layout=layout)


def test_layouts(client: pjrt.Client) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for layout in (pjrt.TiledLayout((1, 0)), pjrt.StridedLayout((12, 4))):
        assert client.buffer_from_host(x, layout=layout).layout == pjrt.TiledLayout((1, 0))
    told: list[int] = []
    turned = client.buffer_from_host(
        x,
        layout=pjrt.StridedLayout((4, 8)),
        device=client.devices[2],
        on_done_with_host_buffer=lambda: told.append(1),
    )
    assert (turned.layout, turned.device.id, told) == (pjrt.TiledLayout((0, 1)), 2, [1])
    assert np.asarray(turned).tolist() == x.tolist()
    again = turned.copy_to(client.devices[1])
    assert again.layout == turned.layout
    assert np.asarray(again).tolist() == x.tolist()
