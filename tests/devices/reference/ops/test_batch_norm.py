"""Batch normalization against its formulas in f64, and its gradient against differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pjrt.api.element_type import ElementType

T = ElementType
EPSILON = 0.125


def program(kind: str, t: ElementType, feature: int, operands: int, results: list[str]) -> str:
    whole, per = f"tensor<3x4x5x{t.mlir}>", f"tensor<{(3, 4, 5)[feature]}x{t.mlir}>"
    types = {3: [whole, per, per], 5: [whole, per, per, per, whole if kind == "grad" else per]}[operands]
    made = [{"whole": whole, "per": per}[r] for r in results]
    given = ", ".join(f"%a{i}: {type_}" for i, type_ in enumerate(types))
    names = ", ".join(f"%a{i}" for i in range(operands))
    count = len(made)
    out = ", ".join(f"%0#{i}" for i in range(count)) if count > 1 else "%0"
    bound = f"%0:{count}" if count > 1 else "%0"
    signature = f"({', '.join(types)}) -> ({', '.join(made)})"
    return f"""func.func @main({given}) -> ({", ".join(made)}) {{
      {bound} = "stablehlo.batch_norm_{kind}"({names})
        {{epsilon = {EPSILON} : f32, feature_index = {feature} : i64}} : {signature}
      return {out} : {", ".join(made)} }}"""


def values(feature: int, t: ElementType) -> dict[str, Any]:
    random = np.random.default_rng(feature)
    size = (3, 4, 5)[feature]
    made = {"x": random.standard_normal((3, 4, 5)), "gradient": random.standard_normal((3, 4, 5))}
    made |= {name: random.standard_normal(size) for name in ("scale", "offset", "mean")}
    made["variance"] = random.uniform(0.5, 2, size)
    return {name: value.astype(t.dtype) for name, value in made.items()}


def spread(value: Any, feature: int) -> Any:
    return value.reshape([-1 if d == feature else 1 for d in range(3)])


def others(feature: int) -> tuple[int, ...]:
    return tuple(d for d in range(3) if d != feature)


def tolerance(t: ElementType) -> float:
    """A few roundings of f32 on the way, and one to the type."""
    return {T.BF16: 2.0**-7, T.F16: 2.0**-9, T.F32: 2.0**-19, T.F64: 2.0**-46}[t]


FLOATS = [T.BF16, T.F16, T.F32, T.F64]


@pytest.mark.parametrize("feature", [0, 1, 2])
@pytest.mark.parametrize("t", FLOATS, ids=lambda t: t.mlir)
def test_inference(run: Any, t: ElementType, feature: int) -> None:
    v = values(feature, t)
    args = [v[name] for name in ("x", "scale", "offset", "mean", "variance")]
    (found,) = run(program("inference", t, feature, 5, ["whole"]), *args)
    x, *rest = (a.astype(np.float64) for a in args)
    scale, offset, mean, variance = (spread(a, feature) for a in rest)
    expected = (x - mean) / np.sqrt(variance + EPSILON) * scale + offset
    assert found.dtype == t.dtype
    assert np.abs(found.astype(np.float64) - expected).max() <= tolerance(t) * np.abs(expected).max()


def normalized(x: Any, scale: Any, offset: Any, feature: int) -> tuple[Any, Any, Any]:
    mean, variance = x.mean(others(feature)), x.var(others(feature))
    unit = (x - spread(mean, feature)) / np.sqrt(spread(variance, feature) + EPSILON)
    return unit * spread(scale, feature) + spread(offset, feature), mean, variance


@pytest.mark.parametrize("feature", [0, 1, 2])
@pytest.mark.parametrize("t", FLOATS, ids=lambda t: t.mlir)
def test_training(run: Any, t: ElementType, feature: int) -> None:
    v = values(feature, t)
    args = [v[name] for name in ("x", "scale", "offset")]
    found = run(program("training", t, feature, 3, ["whole", "per", "per"]), *args)
    for got, expected in zip(found, normalized(*(a.astype(np.float64) for a in args), feature), strict=True):
        assert got.dtype == t.dtype
        assert np.abs(got.astype(np.float64) - expected).max() <= tolerance(t) * np.abs(expected).max()


@pytest.mark.parametrize("feature", [0, 1, 2])
def test_gradient_is_the_slope(run: Any, feature: int) -> None:
    v = values(feature, T.F64)
    _, mean, variance = normalized(v["x"], v["scale"], v["offset"], feature)
    args = [v["x"], v["scale"], mean, variance, v["gradient"]]
    found = run(program("grad", T.F64, feature, 5, ["whole", "per", "per"]), *args)

    def loss(x: Any, scale: Any, offset: Any) -> float:
        return float((normalized(x, scale, offset, feature)[0] * v["gradient"]).sum())

    point = [v["x"], v["scale"], v["offset"]]
    for number, got in enumerate(found):
        for index in np.ndindex(got.shape):
            ends = []
            for step in (-1e-6, 1e-6):
                moved = [a.copy() for a in point]
                moved[number][index] += step
                ends.append(loss(*moved))
            assert got[index] == pytest.approx((ends[1] - ends[0]) / 2e-6, abs=1e-6)


@pytest.mark.parametrize("t", FLOATS, ids=lambda t: t.mlir)
def test_gradient_of_every_type(run: Any, t: ElementType) -> None:
    v = values(1, t)
    args = [v[name] for name in ("x", "scale", "mean", "variance", "gradient")]
    wide = [a.astype(np.float64) for a in args]
    text = program("grad", t, 1, 5, ["whole", "per", "per"])
    expected = run(program("grad", T.F64, 1, 5, ["whole", "per", "per"]), *wide)
    for got, right in zip(run(text, *args), expected, strict=True):
        assert got.dtype == t.dtype
        assert np.abs(got.astype(np.float64) - right).max() <= 2 * tolerance(t) * np.abs(right).max()
