"""Functions of JAX as tiny programs, so that a framework's own training step runs on the tiny plugin too.

The module that JAX sends is whole: any compiler of StableHLO runs it. The tiny program for the same function lies in it
as a frontend attribute of its operations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tiny.program import TinyProgram


def also_tiny(function: Callable[..., Any], *examples: Any) -> Callable[..., Any]:
    """Return a function to give to ``jax.jit``, that computes the same and carries the tiny program for itself.

    It can be compiled for arguments like the examples. It is made of sums, products, matrix products, sums along
    dimensions, broadcasts and transposes of f32.
    """
    import jax
    from jax.experimental.xla_metadata import set_xla_metadata

    text = tiny_text(jax.make_jaxpr(function)(*examples))

    def carrying(*arguments: Any) -> Any:
        with set_xla_metadata(tiny=text):
            return function(*arguments)

    carrying.__name__ = function.__name__
    return carrying


def tiny_text(closed: Any) -> str:
    """Return the tiny program of a jaxpr."""
    program = TinyProgram("step")
    names: dict[Any, Any] = {}
    for variable in closed.jaxpr.invars:
        names[variable] = program.parameter(_shape(variable.aval))
    _add(program, closed.jaxpr, closed.consts, names)
    for variable in closed.jaxpr.outvars:
        program.result(_name(program, names, variable))
    return program.text


def _add(program: TinyProgram, jaxpr: Any, consts: Any, names: dict[Any, Any]) -> None:
    names.update(zip(jaxpr.constvars, consts, strict=True))
    for equation in jaxpr.eqns:
        inner = equation.params.get("jaxpr") or equation.params.get("call_jaxpr")
        if inner is not None:
            inner_names = {v: _value(names, a) for v, a in zip(inner.jaxpr.invars, equation.invars, strict=True)}
            _add(program, inner.jaxpr, inner.consts, inner_names)
            for outer, result in zip(equation.outvars, inner.jaxpr.outvars, strict=True):
                names[outer] = _value(inner_names, result)
            continue
        names[equation.outvars[0]] = _ELEMENTWISE_OR_EINSUM[equation.primitive.name](program, names, equation)


def _value(names: dict[Any, Any], variable: Any) -> Any:
    return variable.val if hasattr(variable, "val") else names[variable]


def _shape(aval: Any) -> str:
    assert str(aval.dtype) == "float32", f"the tiny plugin computes with f32, not {aval.dtype}"
    return f"f32[{','.join(map(str, aval.shape))}]"


def _name(program: TinyProgram, names: dict[Any, Any], variable: Any) -> str:
    """Return the name of a value; a number becomes one."""
    value = _value(names, variable)
    return value if isinstance(value, str) else program.let("fill", _shape(variable.aval), repr(float(value)))


def _arithmetic(operation: str) -> Callable[..., str]:
    def add(program: TinyProgram, names: dict[Any, Any], equation: Any) -> str:
        result = equation.outvars[0].aval
        operands = []
        for variable in equation.invars:
            name = _name(program, names, variable)
            shape = variable.aval.shape
            if shape != result.shape:
                spec = _spread(shape, range(len(shape)), result.shape)
                name = program.let("einsum", spec, _shape(result), name)
            operands.append(name)
        return program.let(operation, *operands)

    return add


def _divide(program: TinyProgram, names: dict[Any, Any], equation: Any) -> str:
    """Multiply by the inverse of a number; only numbers are divided by."""
    dividend, divisor = equation.invars
    inverse = program.let("fill", _shape(equation.outvars[0].aval), repr(1 / float(_value(names, divisor))))
    return program.let("mul", _name(program, names, dividend), inverse)


def _power(program: TinyProgram, names: dict[Any, Any], equation: Any) -> str:
    assert equation.params["y"] == 2
    name = _name(program, names, equation.invars[0])
    return program.let("mul", name, name)


def _einsum(spec_of: Callable[[Any], str]) -> Callable[..., str]:
    def add(program: TinyProgram, names: dict[Any, Any], equation: Any) -> str:
        operands = [_name(program, names, variable) for variable in equation.invars]
        return program.let("einsum", spec_of(equation), _shape(equation.outvars[0].aval), *operands)

    return add


def _letters(count: int, first: int = 0) -> str:
    return "".join(chr(ord("a") + first + i) for i in range(count))


def _dot(equation: Any) -> str:
    (left_sum, right_sum), (left_batch, _) = equation.params["dimension_numbers"]
    assert not left_batch
    left = _letters(len(equation.invars[0].aval.shape))
    right = list(_letters(len(equation.invars[1].aval.shape), len(left)))
    for i, j in zip(left_sum, right_sum, strict=True):
        right[j] = left[i]
    kept = [c for c in left if c not in right] + [c for c in right if c not in left]
    return f"{left},{''.join(right)}->{''.join(kept)}"


def _transpose(equation: Any) -> str:
    letters = _letters(len(equation.params["permutation"]))
    return f"{letters}->{''.join(letters[i] for i in equation.params['permutation'])}"


def _sum(equation: Any) -> str:
    letters = _letters(len(equation.invars[0].aval.shape))
    return f"{letters}->{''.join(c for i, c in enumerate(letters) if i not in equation.params['axes'])}"


def _broadcast(equation: Any) -> str:
    places = equation.params["broadcast_dimensions"]
    return _spread(equation.invars[0].aval.shape, places, equation.outvars[0].aval.shape)


def _spread(source: Any, places: Any, target: Any) -> str:
    """Return the letters of a broadcast: a dimension of one element gets a letter that the result lacks."""
    out = _letters(len(target))
    letters = [
        out[i] if n == target[i] else chr(ord("z") - k) for k, (i, n) in enumerate(zip(places, source, strict=True))
    ]
    return f"{''.join(letters)}->{out}"


def _reshape(equation: Any) -> str:
    """Return the letters of a reshape that only adds or removes dimensions of one element."""
    source, target = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
    letters_of = [c if n != 1 else "" for c, n in zip(_letters(len(source)), source, strict=True)]
    kept = iter([c for c in letters_of if c])
    ones = iter("zyxwvu")
    old = "".join(c or next(ones) for c in letters_of)
    ones_of_target = iter("tsrqpo")
    new = "".join(next(kept) if n != 1 else next(ones_of_target) for n in target)
    return f"{old}->{new}"


_ELEMENTWISE_OR_EINSUM: dict[str, Callable[..., str]] = {
    "add": _arithmetic("add"),
    "sub": _arithmetic("sub"),
    "mul": _arithmetic("mul"),
    "neg": _arithmetic("neg"),
    "div": _divide,
    "integer_pow": _power,
    "dot_general": _einsum(_dot),
    "transpose": _einsum(_transpose),
    "reduce_sum": _einsum(_sum),
    "broadcast_in_dim": _einsum(_broadcast),
    "reshape": _einsum(_reshape),
}
