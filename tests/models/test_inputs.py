"""Inputs: which array each parameter gets, from files, numbers and generated values."""

from __future__ import annotations

import json
import math
import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import pjrt
from pjrt.api.element_type import ElementType
from pjrt.models import make_arguments
from pjrt.models.inputs import arrays_in
from pjrt.stablehlo import Parameter

F32 = ElementType.F32


def made(*options: str, **types: tuple[ElementType, tuple[int | str | None, ...]]) -> list[np.ndarray[Any, Any]]:
    """Return the arrays for parameters with these names."""
    parameters = [Parameter(i, name, *type_) for i, (name, type_) in enumerate(types.items())]
    return [argument.array for argument in make_arguments(parameters, options)]


def refused(error: type[Exception], *options: str, **types: Any) -> str:
    with pytest.raises(error) as caught:
        made(*options, **types)
    return str(caught.value)


VALUED = [kind for kind in ElementType if kind not in (ElementType.INVALID, ElementType.TOKEN) and kind.bits > 1]


@pytest.mark.parametrize("kind", VALUED, ids=lambda kind: kind.name)
def test_zeros_ones_and_random_numbers_of_every_type(kind: ElementType) -> None:
    for text in ("ones", "zeros", "random:1"):
        if kind is ElementType.F8E8M0FNU and text != "ones":
            continue  # it has neither a zero nor negative numbers
        (array,) = made(text, x=(kind, (2, 3)))
        assert array.dtype == kind.dtype
        assert array.shape == (2, 3)
        if text == "ones":
            assert (array.astype(np.complex128 if kind.is_complex else np.float64) == 1).all()


def test_random_numbers_depend_on_the_seed_and_the_parameter() -> None:
    types = {"x": (F32, (8,)), "y": (F32, (8,))}
    first, second = made("random:3", **types), made("random:4", **types)
    assert np.array_equal(made("random:3", **types)[0], first[0])
    assert not np.array_equal(first[0], first[1])
    assert not np.array_equal(first[0], second[0])


@pytest.mark.parametrize(
    ("kind", "low", "high"),
    [(ElementType.S32, 0, 30522), (ElementType.U64, (1 << 64) - 3, 1 << 64), (ElementType.S8, -128, 128)],
)
def test_random_integers_between_bounds(kind: ElementType, low: int, high: int) -> None:
    ids, scale = made(f"random:0:{low}:{high}", ids=(kind, (4096,)), scale=(F32, (4096,)))
    values = [int(value) for value in ids]
    assert low <= min(values) <= low + (high - low) // 4
    assert high - max(1, (high - low) // 4) <= max(values) < high
    assert scale.min() < 0 < scale.max()  # they are for integers alone


@pytest.mark.parametrize("bounds", ["5:5", "-1:5", "0:300", "5", "a:b"])
def test_bounds_of_random_integers_are_checked(bounds: str) -> None:
    message = refused(pjrt.InvalidArgumentError, f"random:0:{bounds}", ids=(ElementType.U8, (2,)))
    assert "from 0 to 256 for argument 0 (ids)" in message or "random:SEED:LOW:HIGH for integers" in message


LAYERS = {f"params['encoder']['layer'][{i}]['attention'].weight": (F32, (2,)) for i in range(40)}


def test_names_with_dots_are_those_of_nested_arguments(tmp_path: Path) -> None:
    named = {f"encoder.layer.{i}.attention.weight": np.float32([i, i]) for i in range(40)}
    np.savez(tmp_path / "weights.npz", **named)
    arrays = made(f"{tmp_path}/weights.npz", "x=7", **LAYERS, x=(F32, ()))
    assert [array.tolist() for array in arrays] == [*([i, i] for i in range(40)), 7]
    assert made("encoder.layer.3.attention.weight=[5, 6]", "zeros", **LAYERS)[3].tolist() == [5, 6]
    np.savez(tmp_path / "more.npz", **named, **{"encoder.layer.40.attention.weight": np.float32([1, 2])})
    message = refused(pjrt.InvalidArgumentError, f"{tmp_path}/more.npz", **LAYERS)
    assert "found encoder.layer.40.attention.weight too (params['a']['b'] is called by this name, " in message
    assert "or as a.b); take one array" in message
    assert "… of 40)" in message
    assert len(message) < 1000
    np.savez(tmp_path / "others.npz", **{f"layers.{i}.w": np.float32([i, i]) for i in range(40)})
    message = refused(pjrt.InvalidArgumentError, f"{tmp_path}/others.npz", **LAYERS)
    assert "none of its names is an argument's" in message
    assert "or as a.b)" in message
    assert len(message) < 1500


def test_numbers_go_by_name_by_index_and_in_order() -> None:
    types = {"x": (F32, ()), "weights['w']": (ElementType.S32, (3,)), "n": (ElementType.U8, ())}
    x, w, n = made("x=3.5", "w=[1,2,3]", "2=7", **types)
    assert (x.dtype, x.shape, x.item()) == (np.float32, (), 3.5)
    assert w.tolist() == [1, 2, 3]
    assert n.item() == 7
    x, w, n = made("3.5", "[1, 2, 3]", "7", **types)
    assert (x.item(), w.tolist(), n.item()) == (3.5, [1, 2, 3], 7)


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("-3", ElementType.S8, -3),
        ("true", ElementType.PRED, True),
        ("1e30", F32, np.float32(1e30)),
        ("-inf", F32, -math.inf),
        ("+.5", ElementType.BF16, 0.5),
        ("3", F32, 3.0),
        ("4.0", ElementType.S32, 4),
        ("1-2j", ElementType.C64, 1 - 2j),
        ("2j", ElementType.C128, 2j),
        ("[[1],[2]]", ElementType.S4, [[1], [2]]),
        ("[]", F32, []),
        ("(true,false)", ElementType.PRED, [True, False]),
        ("18446744073709551615", ElementType.U64, 2**64 - 1),
    ],
)
def test_numbers_become_the_type_of_the_parameter(text: str, kind: ElementType, value: Any) -> None:
    expected = np.array(value, kind.dtype)
    (array,) = made(f"x={text}", x=(kind, expected.shape))
    assert array.dtype == kind.dtype
    assert np.array_equal(array, expected)
    (nan,) = made("nan", x=(F32, ()))
    assert np.isnan(nan)


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("3.5", ElementType.S32, ("x", "s32[]", "whole numbers from -2147483648 to 2147483647", "3.5")),
        ("300", ElementType.U8, ("from 0 to 255", "300")),
        ("-1", ElementType.U8, ("from 0 to 255", "-1")),
        ("1e400", ElementType.F64, ("expected numbers up to 1.79", "inf")),
        ("1e39", F32, ("real numbers that the element type f32 can hold", "1e+39")),
        ("1+1j", F32, ("real numbers", "(1+1j)")),
        ("nan", ElementType.S32, ("whole numbers", "nan")),
        ("2", ElementType.PRED, ("True or False", "2")),
        ("inf", ElementType.F8E4M3FN, ("f8e4m3fn can hold", "inf")),
        ("1" + "0" * 400, ElementType.F64, ("f64 can hold", "1000")),
        ("1" + "0" * 30, ElementType.S64, ("from -9223372036854775808", "1000")),
        ("[1,[2]]", F32, ("equal lengths",)),
        ("3.5]", F32, ("a number such as 3.5", "'3.5]'")),
        ("1+x", F32, ("a number such as 3.5",)),
        ("[1]*9", F32, ("a number such as 3.5",)),
        ("9" * 5000, F32, ("a number such as 3.5",)),
    ],
)
def test_numbers_that_do_not_fit_are_refused(text: str, kind: ElementType, words: tuple[str, ...]) -> None:
    message = refused(pjrt.InvalidArgumentError, f"x={text}", x=(kind, ()))
    assert message.startswith("INVALID_ARGUMENT: --input x=")
    for word in words:
        assert word in message


def test_a_number_of_another_shape_is_refused() -> None:
    message = refused(pjrt.InvalidArgumentError, "x=1", x=(F32, (2,)))
    assert "expected argument 0 (x): f32[2], found f32[]" in message


@given(st.data())
def test_any_lists_of_numbers_come_back(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from([ElementType.F64, ElementType.S64, ElementType.U16, ElementType.PRED, F32]))
    shape = data.draw(st.lists(st.integers(1, 3), max_size=3))
    array = data.draw(arrays(kind.dtype, tuple(shape)))
    array = np.nan_to_num(array) if kind.is_floating else array
    (copy,) = made(f"x={json.dumps(array.tolist())}", x=(kind, array.shape))
    assert np.array_equal(copy, array)


@pytest.mark.parametrize("kind", VALUED, ids=lambda kind: kind.name)
def test_raw_bytes_have_the_type_and_shape_of_the_parameter(kind: ElementType, tmp_path: Path) -> None:
    array = np.array([[1, 0, 1], [1, 1, 1]]).astype(kind.dtype)
    path = tmp_path / "x.bin"
    path.write_bytes(array.tobytes())
    (copy,) = made(f"x={path}", x=(kind, (2, 3)))
    assert copy.dtype == kind.dtype
    assert copy.tobytes() == array.tobytes()
    (copy,) = made(str(path), x=(kind, ("batch", 3)))
    assert copy.shape == (2, 3)


def test_raw_bytes_of_a_wrong_size_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(bytes(7))
    assert "expected 8 bytes for argument 0 (x): f32[2], found a file of 7 bytes" in refused(
        pjrt.InvalidArgumentError, str(path), x=(F32, (2,))
    )
    assert "a multiple of 8 bytes" in refused(pjrt.InvalidArgumentError, str(path), x=(F32, (None, 2)))
    assert "have none; give a .npy file" in refused(pjrt.InvalidArgumentError, str(path), x=(F32, (None, None)))
    assert "expected 0 bytes" in refused(pjrt.InvalidArgumentError, str(path), x=(F32, (None, 0)))
    path.write_bytes(b"\2")
    assert "bytes of 0 and 1" in refused(pjrt.InvalidArgumentError, str(path), x=(ElementType.PRED, (1,)))
    assert "found none" in refused(pjrt.NotFoundError, "x=missing.bin", x=(F32, (2,)))
    path.write_bytes(b"")
    (empty,) = made(str(path), x=(F32, (None, 2)))
    assert empty.shape == (0, 2)


def test_names_that_the_program_does_not_have_are_refused() -> None:
    types = {"x": (F32, ()), "y": (F32, ())}
    for value in ("1", "zeros", "file.bin"):
        message = refused(pjrt.InvalidArgumentError, f"z={value}", **types)
        assert "no argument called 'z'; it has argument 0 (x): f32[]; argument 1 (y): f32[]" in message
    many = {f"layers[{number}]": (F32, ()) for number in range(20)} | {"tokens": (F32, ())}
    message = refused(pjrt.InvalidArgumentError, "token=1", **many)
    assert "no argument called 'token'; it has tokens, " in message
    assert message.endswith(", … of 21")
    assert "arguments 0 to 1, found 2" in refused(pjrt.InvalidArgumentError, "2=1", **types)
    assert "has a value already" in refused(pjrt.InvalidArgumentError, "x=1", "0=1", **types)
    assert "without a value: argument 1 (y)" in refused(pjrt.InvalidArgumentError, "x=1", **types)
    assert "it is left over" in refused(pjrt.InvalidArgumentError, "1", "2", "3", **types)


def test_what_has_no_known_form_is_refused() -> None:
    message = refused(pjrt.InvalidArgumentError, "weights.pt", x=(F32, ()))
    for form in ("PATH.npy", "PATH.bin", "random:SEED", "ones", "[1,2,3]"):
        assert form in message


def test_fillers_need_static_shapes() -> None:
    for text in ("zeros", "ones", "random:0"):
        assert "its shape is dynamic; give it by --shape" in refused(pjrt.InvalidArgumentError, text, x=(F32, ("n",)))


CACHE = {"cache['a']['k']": (F32, (2,)), "cache['b']['k']": (F32, (2,)), "x": (F32, ())}


def test_whole_names_in_a_file_and_members_of_a_nested_argument(tmp_path: Path) -> None:
    a, b = np.float32([1, 2]), np.float32([3, 4])
    np.savez(tmp_path / "whole.npz", **{"cache['a']['k']": a, "cache['b']['k']": b})
    np.savez(tmp_path / "results.npz", **{"result[1]['a']['k']": a, "result[1]['b']['k']": b, "result[0]": a})
    np.savez(tmp_path / "bare.npz", **{"['a']['k']": a, "['b']['k']": b})
    for text in ("whole.npz", "cache=whole.npz", "cache=results.npz:result[1]", "cache=bare.npz"):
        target, equals, name = text.rpartition("=")
        arrays = made(f"{target}{equals}{tmp_path}/{name}", "x=1", **CACHE)
        assert [array.tolist() for array in arrays] == [[1, 2], [3, 4], 1]
    arrays = made("cache['a']=zeros", "cache=ones", "x=1", **CACHE)
    assert [array.tolist() for array in arrays] == [[0, 0], [1, 1], 1]


def test_members_that_do_not_fit(tmp_path: Path) -> None:
    np.savez(tmp_path / "other.npz", **{"result['c']": np.float32([1, 2])})
    message = refused(pjrt.NotFoundError, f"cache={tmp_path}/other.npz", **CACHE)
    assert "expected arrays such as cache['NAME']" in message
    assert "it has result['c']" in message
    message = refused(pjrt.InvalidArgumentError, f"cache={tmp_path}/other.npz:result", **CACHE)
    assert "expected members of cache (cache['a']['k'], cache['b']['k']), found ['c'] too" in message


def test_files_and_numbers_mix(tmp_path: Path) -> None:
    np.savez(tmp_path / "w.npz", w=np.float32([1, 2]))
    np.save(tmp_path / "b.npy", np.array(3, ml_dtypes.bfloat16))
    types = {"x": (F32, ()), "w": (F32, (2,)), "b": (ElementType.BF16, ()), "rest": (F32, (4,))}
    x, w, b, rest = made(f"b={tmp_path}/b.npy", "ones", f"{tmp_path}/w.npz", "x=-1", **types)
    assert (x.item(), w.tolist(), float(b), rest.tolist()) == (-1, [1, 2], 3, [1] * 4)
    assert b.dtype == ml_dtypes.bfloat16


def test_shapes_for_what_has_none(tmp_path: Path) -> None:
    types = {"x": (F32, ("b", 3)), "y": (F32, ("2*b",)), "z": (F32, (None,))}
    parameters = [Parameter(i, name, *type_) for i, (name, type_) in enumerate(types.items())]

    def shapes(*options: str, **given: tuple[int, ...]) -> list[tuple[int, ...]]:
        return [each.array.shape for each in make_arguments(parameters, options, given)]

    assert shapes("zeros", b=(4,), z=(7,)) == [(4, 3), (8,), (7,)]
    assert shapes("y=random:0", "zeros", x=(4, 3), z=(7,)) == [(4, 3), (8,), (7,)]
    np.save(tmp_path / "x.npy", np.ones((5, 3), np.float32))
    assert shapes("zeros", f"x={tmp_path}/x.npy", z=(7,)) == [(5, 3), (10,), (7,)]
    with pytest.raises(pjrt.InvalidArgumentError, match=r"expected argument 0 \(x\): f32\[4,3\], found f32\[5,3\]"):
        shapes("zeros", f"x={tmp_path}/x.npy", b=(4,), z=(7,))
    with pytest.raises(pjrt.InvalidArgumentError, match="or a symbol"):
        shapes("zeros", c=(4,))
    with pytest.raises(pjrt.InvalidArgumentError, match=r"z.*its shape is dynamic; give it by --shape"):
        shapes("zeros", b=(4,))


def test_an_array_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    """A compressed array may take a thousand times the memory of its file."""
    path = tmp_path / "large.npz"
    np.savez_compressed(path, x=np.zeros(1 << 20, np.float32), y=np.ones(2, np.float32))
    message = refused(pjrt.InvalidArgumentError, str(path), x=(F32, (2,)), y=(F32, (2,)))
    assert "expected arrays of at most 8 bytes" in message
    assert "found 'x' of 4,194," in message
    with pytest.raises(pjrt.InvalidArgumentError, match="expected arrays of at most 8 bytes"):
        arrays_in(str(path), "0=large.npz", most_bytes=8)
    assert set(arrays_in(f"{path}:y", "0=large.npz:y", most_bytes=8)) == {"y"}


def test_archives_that_are_damaged_in_their_outline(tmp_path: Path) -> None:
    """numpy gives the bytes of a member that is no array, and the directory is read before the arrays."""
    path = tmp_path / "x.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", b"no array")
    assert "'x' in it is no array" in refused(pjrt.InvalidArgumentError, str(path), x=(F32, (2,)))
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\1\2")] ^= 1
    path.write_bytes(content)
    assert "is not a readable .npz file" in refused(pjrt.InvalidArgumentError, str(path), x=(F32, (2,)))
