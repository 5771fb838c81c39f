"""The short form of a call: arguments by name, and Python numbers."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from anydevice import Backend
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pjrt.api.client import Client
from pjrt.api.element_type import ElementType
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError, UnimplementedError
from pjrt.api.loaded_executable import LoadedExecutable

NAMED = """
func.func @main(%x: tensor<2xf32> loc("x"), %n: tensor<i32> loc("n"), %w: tensor<i32> loc("layers['a']['w']"),
                %v: tensor<i32> loc("layers['b']['v']"), %u: tensor<i32> loc("layers['c']['v']"))
    -> (tensor<2xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) {
  return %x, %n, %w, %v, %u : tensor<2xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>
}"""


def values(results: Any) -> list[Any]:
    return [result.tolist() for result in results]


@pytest.fixture
def executable(backend: Backend, client: Client) -> LoadedExecutable:
    """A program with names; skipped on a device of the tests whose own format has none."""
    if "func.func" not in backend.programs.identity(()).code.decode(errors="replace"):
        pytest.skip("the device has a format of its own")
    return client.compile(NAMED)


def test_numbers_become_the_type_of_the_parameter(backend: Backend, client: Client) -> None:
    for kind, number in ((ElementType.F32, 3), (ElementType.F32, 2.5), (ElementType.S32, 4.0), (ElementType.S32, True)):
        executable = client.compile(backend.programs.identity((), kind))
        try:
            executable.parameter_specs  # noqa: B018
        except UnimplementedError:
            pytest.skip("the device does not report the types of parameters")
        (result,) = executable(number)
        assert result.element_type is kind
        assert result.item() == number


def test_lists_become_arrays(backend: Backend, client: Client, executable: LoadedExecutable) -> None:
    (result,) = client.compile(backend.programs.identity((2, 2)))([[1, 2], (3, 4.5)])
    assert result.tolist() == [[1, 2], [3, 4.5]]
    assert client.compile(backend.programs.identity((0,)))([])[0].tolist() == []


@given(st.data())
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_order_of_names_is_the_same_call(executable: LoadedExecutable, data: st.DataObject) -> None:
    given_by_position = data.draw(st.integers(0, 5))
    arguments = [[1.0, 2.0], 3, 4, 5, 6]
    by_name = list(zip(executable.parameter_names, arguments, strict=True))[given_by_position:]
    keywords = dict(data.draw(st.permutations(by_name)))
    assert values(executable(*arguments[:given_by_position], **keywords)) == arguments


def test_buffers_and_arrays_go_by_name_too(client: Client, executable: LoadedExecutable) -> None:
    x = client.buffer_from_host(np.array([1, 2], np.float32))
    rest = {"layers['b']['v']": 5, "layers['c']['v']": 6}
    assert values(executable(n=np.int32(3), x=x, w=4, **rest)) == [[1.0, 2.0], 3, 4, 5, 6]
    assert executable.parameter_names[:2] == executable.executable.parameter_names[:2]
    assert list(executable.parameter_names) == ["x", "n", "layers['a']['w']", "layers['b']['v']", "layers['c']['v']"]
    assert [spec.shape for spec in executable.parameter_specs] == [(2,), (), (), (), ()]


@pytest.mark.parametrize(
    ("arguments", "keywords", "words"),
    [
        ((), {"y": 1}, ("names of arguments of 'main' (x, n, layers['a']['w'], layers['b']['v'], layers", "found 'y'")),
        ((), {"layers": {}}, ("found 'layers'", "load_model takes nested arguments")),
        ((), {"v": 1}, ("'v' is the name of several", "3 (layers['b']['v']), 4 (layers['c']['v'])", "by position")),
        (([1, 2],), {"x": [1, 2]}, ("argument 0 of 'main' has two values", "leave one out")),
        (([1, 2], 1), {"w": 2}, ("takes 5 arguments, found none for 3 (layers['b']['v']), 4", "by name")),
        ((1, 2, 3, 4, 5, 6), {"x": 1}, ("takes 5 arguments, found 6 by position",)),
        ((1, 2, 3, 4, 5, 6), {}, ("takes 5 arguments, found 6",)),
        (([1, 2], 3.5, 1, 1, 1), {}, ("argument 1 of 'main', s32[]", "whole numbers from -2147483648", "found 3.5")),
        (([1, 2], 2**31, 1, 1, 1), {}, ("to 2147483647", "found 2147483648")),
        (([1e300, 2], 1, 1, 1, 1), {}, ("argument 0 of 'main', f32[2]", "f32 can hold", "1e+300")),
        (([10**400, 2], 1, 1, 1, 1), {}, ("f32 can hold", "1000")),
        (([1j, 2], 1, 1, 1, 1), {}, ("real numbers", "1j")),
        (([[1], [2, 3]], 1, 1, 1, 1), {}, ("lists of equal lengths",)),
        (([1, 2, 3], 1, 1, 1, 1), {}, ("argument 0", "f32[2]", "f32[3]")),
        ((np.ones(2), 1, 1, 1, 1), {}, ("must be f32[2]", "numpy array of f64[2]", "array.astype('float32')")),
        (([1, 2], np.int64(1), 1, 1, 1), {}, ("argument 1", "must be s32[]", "s64[]", "astype('int32')")),
    ],
)
def test_wrong_arguments_are_explained(
    executable: LoadedExecutable, arguments: Any, keywords: dict[str, Any], words: tuple[str, ...]
) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        executable(*arguments, **keywords)
    for word in words:
        assert word in str(caught.value)


def test_a_program_without_names_says_so(executable: LoadedExecutable, client: Client) -> None:
    unnamed = client.compile(re.sub(r' loc\("[^"]*"\)', "", NAMED))
    with pytest.raises(InvalidArgumentError, match=r"have no names, found 'x'; give them by position"):
        unnamed(x=1)
    assert values(unnamed([1, 2], 3, 4, 5, 6)) == [[1, 2], 3, 4, 5, 6]


def test_a_loaded_executable_knows_its_names(client: Client, executable: LoadedExecutable) -> None:
    loaded = client.deserialize(executable.serialize())
    assert list(loaded.parameter_names) == list(executable.parameter_names)
    assert values(loaded(w=4, n=3, x=[1, 2], **{"layers['b']['v']": 5, "layers['c']['v']": 6}))[1] == 3


def test_a_deleted_executable_is_not_called(executable: LoadedExecutable) -> None:
    executable.delete()
    with pytest.raises(FailedPreconditionError):
        executable([1, 2], n=3)


def test_numbers_where_the_device_does_not_know_types(backend: Backend, client: Client) -> None:
    """They have numpy's types, which the device accepts or refuses; names are refused."""
    if backend.name != "tiny":
        pytest.skip("only the plugin of the tests is such a device")
    executable = client.compile(backend.programs.identity((), ElementType.F64))
    assert executable(2.5)[0].item() == 2.5
    with pytest.raises(UnimplementedError, match="reports the optimized program as 'tiny'"):
        executable(x=1)
