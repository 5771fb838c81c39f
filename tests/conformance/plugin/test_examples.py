"""The examples of right calls: every function of the table has one."""

from __future__ import annotations

from pjrt.abi.schema import FUNCTIONS, STRUCTS
from pjrt.conformance.plugin.check import all_checks
from pjrt.conformance.plugin.examples import EXAMPLES, is_repeatable


def test_every_function_of_the_table_has_an_example() -> None:
    assert [name for name, each in FUNCTIONS.items() if not each.extension and name not in EXAMPLES] == []


def test_the_struct_size_of_every_example_is_checked() -> None:
    names = all_checks().keys()
    sized = [name for name in EXAMPLES if "struct_size" in STRUCTS[FUNCTIONS[name].args].fields]
    assert len(sized) > 180
    assert {f"struct_size.too_short[{name}]" for name in sized} <= names
    assert {f"struct_size.right_and_longer[{name}]" for name in EXAMPLES} <= names


def test_which_calls_can_be_repeated() -> None:
    assert is_repeatable("PJRT_Buffer_Dimensions")
    assert not is_repeatable("PJRT_Buffer_Destroy")
    assert not is_repeatable("PJRT_Event_Set")
