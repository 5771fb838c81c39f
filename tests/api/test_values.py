"""The smaller value types: layouts, shapes, programs, the key-value store."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pjrt

tiles = st.lists(st.lists(st.integers(1, 200) | st.just(-1), min_size=1, max_size=3).map(tuple), max_size=3).map(tuple)


@given(st.integers(0, 5).flatmap(lambda rank: st.permutations(range(rank))), tiles)
def test_layouts_go_round_through_their_text(order: list[int], given_tiles: tuple[tuple[int, ...], ...]) -> None:
    layout = pjrt.TiledLayout(tuple(order), given_tiles)
    assert pjrt.TiledLayout.parse(str(layout).replace("-1", "*")) == layout
    assert layout.is_row_major == (not given_tiles and order == sorted(order, reverse=True))


def test_xlas_spellings_of_layouts() -> None:
    assert str(pjrt.TiledLayout((1, 0), ((8, 128), (2, 1)))) == "{1,0:T(8,128)(2,1)}"
    assert pjrt.TiledLayout.parse("{1,0:T(8,128)(2,1)S(5)}") == pjrt.TiledLayout((1, 0), ((8, 128), (2, 1)))
    assert pjrt.TiledLayout.parse("{0:S(1)}") == pjrt.TiledLayout((0,))
    assert pjrt.TiledLayout.parse("{}") == pjrt.TiledLayout(())
    assert pjrt.TiledLayout.row_major(3).minor_to_major == (2, 1, 0)


@pytest.mark.parametrize(
    ("dtype", "shape", "layout", "size"),
    [
        ("float32", (2, 150), "{1,0}", 1200),
        ("float32", (2, 150), "{1,0:T(8,128)}", 8 * 256 * 4),
        ("float32", (2, 150), "{0,1:T(8,128)}", 152 * 128 * 4),
        ("bfloat16", (3, 5, 2), "{2,1,0:T(8,128)(2,1)}", 3 * 8 * 128 * 2),
        ("float32", (5,), "{0:T(8,128)}", 8 * 128 * 4),
        ("int4", (2, 3), "{1,0:E(4)}", 3),
        ("int4", (2, 3), "{1,0:T(8,128)E(4)}", 8 * 128 // 2),
        ("float32", (0, 3), "{1,0:T(8,128)}", 0),
        ("float32", (2, 3), "{1,0:T(*,128)}", 24),
    ],
)
def test_the_bytes_of_a_layout(dtype: str, shape: tuple[int, ...], layout: str, size: int) -> None:
    assert pjrt.TiledLayout.parse(layout).size_of(pjrt.ShapeSpec(shape, dtype)) == size


@pytest.mark.parametrize("text", ["", "1,0", "{1,0", "{a}", "{1,0:T(x)}", "{0,0}", "{1}"])
def test_texts_that_are_no_layout_are_refused(text: str) -> None:
    with pytest.raises(pjrt.InvalidArgumentError):
        pjrt.TiledLayout.parse(text)


def test_shape_specs() -> None:
    spec = pjrt.ShapeSpec([2, np.int64(3)], "bfloat16")  # type: ignore[arg-type]
    assert spec == pjrt.ShapeSpec((2, 3), pjrt.ElementType.BF16)
    assert (spec.size, spec.size_in_bytes, str(spec)) == (6, 12, "bf16[2,3]")
    assert pjrt.ShapeSpec((3,), pjrt.ElementType.S4).size_in_bytes == 3
    assert pjrt.ShapeSpec((), pjrt.ElementType.TOKEN).size_in_bytes == 0
    assert pjrt.ShapeSpec.of(np.zeros((1, 2), np.int8)) == pjrt.ShapeSpec((1, 2), pjrt.ElementType.S8)
    with pytest.raises(pjrt.InvalidArgumentError, match="0 or more"):
        pjrt.ShapeSpec((-1,), pjrt.ElementType.F32)


@pytest.mark.parametrize("given_program", ["text", b"text", bytearray(b"text"), memoryview(b"text")])
def test_programs_from_text_and_bytes(given_program: Any) -> None:
    assert pjrt.Program.of(given_program) == pjrt.Program(b"text", "mlir")


def test_programs() -> None:
    program = pjrt.Program(b"abc", pjrt.ProgramFormat.HLO)
    assert pjrt.Program.of(program) is program
    assert len(program) == 3
    assert "abc" not in repr(program)
    for wrong in (lambda: pjrt.Program("text"), lambda: pjrt.Program(b"", ""), lambda: pjrt.Program.of(3)):  # type: ignore[arg-type]
        with pytest.raises(pjrt.InvalidArgumentError):
            wrong()


def test_the_key_value_store_waits_for_keys() -> None:
    store = pjrt.InMemoryKeyValueStore()
    with pytest.raises(pjrt.NotFoundError, match="'k'"):
        store.try_get("k")
    with pytest.raises(pjrt.DeadlineExceededError, match="'k'"):
        store.get("k", 0.01)
    found: list[bytes] = []
    thread = threading.Thread(target=lambda: found.append(store.get("k", 60)))
    thread.start()
    store.put("other", b"1")
    store.put("k", bytearray(b"value"))
    thread.join(60)
    assert found == [b"value"] == [store.try_get("k")]
