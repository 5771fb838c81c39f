"""Parameters of HLO modules, against what the program was made of."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pjrt import stablehlo
from pjrt.api.element_type import ElementType
from pjrt.api.errors import DataLossError, PjrtError
from pjrt.api.program import Program, ProgramFormat
from pjrt.api.shape_spec import ShapeSpec
from pjrt.stablehlo.encodings.hlo_parameters import hlo_parameters

KINDS = [
    kind
    for kind in ElementType
    if kind not in (ElementType.INVALID, ElementType.TOKEN) and kind.bits > 1 and not kind.name.startswith("F6")
]


def module_of(parameters: list[tuple[str, ShapeSpec]]) -> Program:
    arguments = ", ".join(
        f"%a{i}: tensor<{''.join(f'{size}x' for size in spec.shape)}{spec.element_type.mlir}>"
        + (f' loc("{name}")' if name else "")
        for i, (name, spec) in enumerate(parameters)
    )
    return stablehlo.read(f"func.func @main({arguments}) {{\n return\n}}")


@given(st.data())
@settings(max_examples=25)
def test_names_types_and_shapes_are_those_of_the_program(data: st.DataObject) -> None:
    spec = st.builds(ShapeSpec, st.lists(st.integers(0, 300), max_size=3).map(tuple), st.sampled_from(KINDS))
    name = st.sampled_from(["", "x", "weights['w']", "a.b[0]", "größe"])
    parameters = data.draw(st.lists(st.tuples(name, spec), max_size=4))
    hlo = stablehlo.to_hlo(module_of(parameters), with_config=data.draw(st.booleans()))
    assert [tuple(parameter) for parameter in hlo_parameters(hlo)] == parameters


def test_every_type_has_its_number() -> None:
    parameters = [(kind.name, ShapeSpec((2,), kind)) for kind in KINDS]
    assert [tuple(parameter) for parameter in hlo_parameters(stablehlo.to_hlo(module_of(parameters)))] == parameters


def test_a_token_is_a_parameter() -> None:
    program = stablehlo.read("func.func @main(%t: !stablehlo.token) {\n return\n}")
    (parameter,) = hlo_parameters(stablehlo.to_hlo(program))
    assert parameter.spec == ShapeSpec((), ElementType.TOKEN)


def test_damaged_bytes_are_an_error_never_a_crash() -> None:
    hlo = stablehlo.to_hlo(module_of([("x", ShapeSpec((2, 3), ElementType.F32)), ("y", ShapeSpec((), ElementType.S8))]))
    with pytest.raises(DataLossError):
        hlo_parameters(Program(b"nothing", ProgramFormat.HLO))
    for place in range(len(hlo.code)):
        for byte in (0, 0xFF, hlo.code[place] ^ 1):
            damaged = hlo.code[:place] + bytes([byte]) + hlo.code[place + 1 :]
            try:
                hlo_parameters(Program(damaged, ProgramFormat.HLO))
            except PjrtError:
                continue
