"""Trees against JAX's own, and the differences that they report."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pjrt import InvalidArgumentError
from pjrt.stablehlo import CustomNode, Tree, TreeKind

Point = namedtuple("Point", "x y")

LEAVES = st.floats(allow_nan=False)
VALUES = st.recursive(
    LEAVES | st.none(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        | st.builds(Point, inner, inner)
    ),
    max_leaves=12,
)


@given(VALUES)
def test_leaves_paths_and_values_are_those_of_jax(value: Any) -> None:
    tree = Tree.of(value)
    expected = jax.tree_util.tree_flatten_with_path(value)[0]
    assert tree.paths() == tuple(jax.tree_util.keystr(path) for path, _ in expected)
    leaves = [leaf for _, leaf in expected]
    assert tree.unflatten(leaves, {"Point": Point}) == value
    assert tree.num_leaves == len(leaves)


@given(VALUES)
def test_flatten_undoes_unflatten(value: Any) -> None:
    tree = Tree.of(value)
    leaves = [np.float32(i) for i in range(tree.num_leaves)]
    assert tree.flatten(tree.unflatten(leaves)) == leaves
    assert tree.flatten(tree.unflatten(leaves, {"Point": Point})) == leaves


STATE = Tree.of(((0.0, {"b": [0.0, None], "a": 0.0}), {"k": 0.0}))


def test_lists_and_tuples_stand_for_each_other() -> None:
    assert STATE.flatten([[1, {"a": 3, "b": (2, None)}], {"k": 4}]) == [1, 3, 2, 4]


def test_a_list_of_numbers_is_a_leaf() -> None:
    assert Tree.of({"x": 0.0}).flatten({"x": [1, [2.0, np.int8(3)]]}) == [[1, [2.0, np.int8(3)]]]


def test_a_key_whose_value_is_none_may_be_missing() -> None:
    assert Tree.of({"x": 0.0, "none": None}).flatten({"x": 1}) == [1]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (((1, {"b": [2, None]}), {"k": 4}), r"missing \[0\]\[1\]\['a'\]"),
        (((1, {"b": [2, None], "a": 3, "c": 5}), {"k": 4}), r"unexpected \[0\]\[1\]\['c'\]"),
        (((1, {"b": [2, 7], "a": 3}), {"k": 4}), r"\[0\]\[1\]\['b'\]\[1\]: expected None, found int"),
        (((1, {"b": [2, None], "a": {}}), {"k": 4}), r"\['a'\]: expected an array, found a dictionary"),
        (((1, {"b": [2, None], "a": None}), {"k": 4}), r"\['a'\]: expected an array, found None"),
        (((1, {"b": 2, "a": 3}), {"k": 4}), r"\['b'\]: expected a list, found int"),
        (((1, [2, 3]), {"k": 4}), r"\[0\]\[1\]: expected a dict, found a list of 2 values"),
        (((1, {"b": [2, None], "a": 3}), {}), r"missing \[1\]\['k'\]"),
        (((1, {"b": [2, None], "a": 3}, 9), {"k": 4}), r"unexpected \[0\]\[2\]"),
        (3, "the whole value: expected a tuple, found int"),
    ],
)
def test_a_difference_names_its_path(value: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        STATE.flatten(value)


def test_all_differences_are_counted_and_the_first_are_shown() -> None:
    tree = Tree.of({f"x{i}": 0.0 for i in range(9)})
    with pytest.raises(InvalidArgumentError, match=r"missing result\['x4'\]; and 4 more differences$"):
        tree.flatten({}, "result")


def test_arrays_in_a_list_are_no_leaf() -> None:
    with pytest.raises(InvalidArgumentError, match=r"x: expected an array, found a list of 2 values"):
        Tree.of(0.0).flatten([np.zeros(2), np.zeros(2)], "x")


def test_unflatten_counts_the_leaves() -> None:
    with pytest.raises(InvalidArgumentError, match="expected 4 leaves"):
        STATE.unflatten([1, 2, 3])


def test_a_custom_node_is_given_by_type_by_children_or_by_field() -> None:
    tree = Tree.of(Point(0.0, 0.0))
    for value in (Point(1, 2), (1, 2), {"y": 2, "x": 1}, CustomNode((1, 2), "Point")):
        assert tree.flatten(value) == [1, 2]
    node = tree.unflatten([1, 2])
    assert (node.x, node.y, node.name, repr(node)) == (1, 2, "Point", "Point(x=1, y=2)")
    with pytest.raises(AttributeError, match="no field 'z'"):
        _ = node.z


def test_a_custom_node_without_field_names_counts_its_children() -> None:
    tree = Tree(TreeKind.CUSTOM, (Tree.of(0.0), Tree.of(0.0)), name="my.Type", data=b"aux")
    assert tree.paths() == ("[<flat index 0>]", "[<flat index 1>]")
    node = tree.unflatten([1, 2])
    assert (tuple(node), node.data) == ((1, 2), b"aux")
    assert Tree.of(node) == tree


def test_the_spelling() -> None:
    assert str(STATE) == "((*, {'a': *, 'b': [*, None]}), {'k': *})"
    assert str(Tree.of((0.0,))) == "(*,)"
    assert str(Tree.of(Point(0.0, None))) == "Point(x=*, y=None)"


def test_what_is_no_tree() -> None:
    deep: Any = 0.0
    for _ in range(300):
        deep = [deep]
    with pytest.raises(InvalidArgumentError, match="at most 200 nested"):
        Tree.of(deep)
    with pytest.raises(InvalidArgumentError, match="found 3"):
        Tree.of({3: 1.0})
    with pytest.raises(InvalidArgumentError, match="a key for each of the 1 children"):
        Tree(TreeKind.DICT, (Tree.of(0.0),))
    with pytest.raises(InvalidArgumentError, match="different keys"):
        Tree(TreeKind.DICT, (Tree.of(0.0),) * 2, ("a", "a"))
