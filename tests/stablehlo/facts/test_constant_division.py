"""Divisions that trap in a compiler that computes them, and those that cannot."""

from __future__ import annotations

import pytest

from pjrt.stablehlo import read, to_module
from pjrt.stablehlo.facts.outline import Outline

T = "tensor<4xi32>"


def may_trap(body: str, functions: str = "", arguments: str = f"%x: {T}, %y: {T}") -> bool:
    constants = "".join(f"%c{number} = stablehlo.constant dense<{number}> : {T}\n" for number in (0, 1, 2, 7))
    text = f"func.func @main({arguments}) -> {T} {{\n{constants}{body}\nreturn %r : {T} }}\n{functions}"
    return Outline.of(to_module(read(text))).may_trap


def function(name: str, body: str) -> str:
    return f"func.func private @{name}(%a: {T}, %b: {T}) -> {T} {{\n{body}\nreturn %s : {T} }}\n"


CALL = f"({T}, {T}) -> {T}"
QUOTIENT = function("f", f"%s = stablehlo.divide %a, %b : {T}")
SECOND = function("g", f"%s = stablehlo.add %b, %b : {T}")
LOOP = f"""%n = stablehlo.constant dense<1> : tensor<i32>
%w:2 = "stablehlo.while"(%c2, %n) ({{ ^bb0(%a: {T}, %i: tensor<i32>):
  %p = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
  stablehlo.return %p : tensor<i1>
}}, {{ ^bb0(%a: {T}, %i: tensor<i32>):
  %q = stablehlo.divide %c7, %a : {T}
  %d = stablehlo.add %i, %n : tensor<i32>
  stablehlo.return %NEXT, %d : {T}, tensor<i32>
}}) : ({T}, tensor<i32>) -> ({T}, tensor<i32>)
%r = stablehlo.add %w#0, %x : {T}"""


@pytest.mark.parametrize(
    ("body", "functions"),
    [
        (f"%r = stablehlo.divide %c7, %c0 : {T}", ""),
        (f"%r = stablehlo.remainder %c7, %c0 : {T}", ""),
        (f"%m = stablehlo.subtract %c0, %c1 : {T}\n%r = stablehlo.divide %c7, %m : {T}", ""),
        (f"%z = stablehlo.subtract %x, %x : {T}\n%r = stablehlo.divide %c7, %z : {T}", ""),
        (f"%z = stablehlo.multiply %x, %c0 : {T}\n%r = stablehlo.divide %c7, %z : {T}", ""),
        (f"%z = stablehlo.and %x, %c0 : {T}\n%r = stablehlo.remainder %c7, %z : {T}", ""),
        (f"%z = stablehlo.subtract %c2, %c2 : {T}\n%r = stablehlo.divide %c7, %z : {T}", ""),
        (f"%r = func.call @f(%c7, %c0) : {CALL}", QUOTIENT),
        (f"%t = func.call @f(%x, %c2) : {CALL}\n%r = func.call @f(%c7, %c0) : {CALL}", QUOTIENT),
        (f"%z = func.call @g(%x, %c0) : {CALL}\n%r = stablehlo.divide %c7, %z : {T}", SECOND),
        (LOOP.replace("%NEXT", "%q"), ""),
        (f"%z = stablehlo.iota dim = 0 : {T}\n%r = stablehlo.divide %c7, %z : {T}", ""),
        (f"%r = chlo.broadcast_divide %c7, %c0 : {CALL}", ""),
    ],
)
def test_constants_that_may_be_divided_by_zero(body: str, functions: str) -> None:
    assert may_trap(body, functions)


@pytest.mark.parametrize(
    ("body", "functions"),
    [
        (f"%r = stablehlo.divide %c7, %c2 : {T}", ""),
        (f"%r = stablehlo.divide %x, %y : {T}", ""),
        (f"%r = stablehlo.remainder %x, %c0 : {T}", ""),
        (f"%n = stablehlo.negate %x : {T}\n%r = stablehlo.divide %c7, %n : {T}", ""),
        (f"%n = stablehlo.add %x, %c1 : {T}\n%r = stablehlo.divide %c7, %n : {T}", ""),
        (f"%z = stablehlo.iota dim = 0 : {T}\n%r = stablehlo.divide %z, %c2 : {T}", ""),
        (f"%n = stablehlo.subtract %c7, %c2 : {T}\n%r = stablehlo.divide %c7, %n : {T}", ""),
        (f"%r = func.call @f(%c7, %c2) : {CALL}", QUOTIENT),
        (
            f"%t = func.call @g(%x, %c0) : {CALL}\n%n = func.call @g(%x, %c1) : {CALL}\n"
            f"%r = stablehlo.divide %c7, %n : {T}",
            SECOND,
        ),
        (LOOP.replace("%NEXT", "%a"), ""),
        (
            f"%p = stablehlo.compare EQ, %c2, %c0 : ({T}, {T}) -> tensor<4xi1>\n"
            f"%n = stablehlo.select %p, %c1, %c2 : tensor<4xi1>, {T}\n%r = stablehlo.remainder %c7, %n : {T}",
            "",
        ),
    ],
)
def test_divisions_that_cannot_trap(body: str, functions: str) -> None:
    assert not may_trap(body, functions)


@pytest.mark.parametrize("element", ["i4", "ui4", "i8", "ui8", "i16", "ui16", "i64", "ui64"])
@pytest.mark.parametrize(("divisor", "expected"), [("[1, 3]", False), ("[2, 0]", True)])
def test_divisions_of_every_type(element: str, divisor: str, expected: bool) -> None:
    type_ = f"tensor<2x{element}>"
    text = f"""func.func @main() -> {type_} {{
      %n = stablehlo.constant dense<5> : {type_}
      %d = stablehlo.constant dense<{divisor}> : {type_}
      %r = stablehlo.divide %n, %d : {type_}
      return %r : {type_} }}"""
    assert Outline.of(to_module(read(text))).may_trap is expected


def test_a_smallest_integer_divided_by_minus_one_may_trap_and_the_largest_unsigned_divisor_does_not() -> None:
    text = """func.func @main() -> tensor<TYPE> {
      %n = stablehlo.constant dense<5> : tensor<TYPE>
      %d = stablehlo.constant dense<LAST> : tensor<TYPE>
      %r = stablehlo.divide %n, %d : tensor<TYPE>
      return %r : tensor<TYPE> }"""
    assert Outline.of(to_module(read(text.replace("TYPE", "i8").replace("LAST", "-1")))).may_trap
    assert not Outline.of(to_module(read(text.replace("TYPE", "ui8").replace("LAST", "255")))).may_trap


def test_functions_that_call_themselves_are_looked_at_once() -> None:
    body = f"%t = func.call @f(%a, %b) : {CALL}\n%s = stablehlo.divide %a, %t : {T}"
    assert may_trap(f"%r = func.call @f(%c7, %c2) : {CALL}", function("f", body))


def test_divisions_of_floats_do_not_trap() -> None:
    text = """func.func @main() -> tensor<f32> {
      %0 = stablehlo.constant dense<0.0> : tensor<f32>
      %r = stablehlo.divide %0, %0 : tensor<f32>
      return %r : tensor<f32> }"""
    assert not Outline.of(to_module(read(text))).may_trap
