"""The table of what custom calls in C must be given: right calls pass, and every wrong shape, type or attribute not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

import pjrt
from pjrt.devices.xla import _jaxlib, compilation
from pjrt.devices.xla.ffi_handler import CHECKED_CSR_PRODUCT, CSR_PRODUCT, SIGNATURES, Signature, check_signature
from pjrt.stablehlo.encodings.hlo_parameters import HloArray, HloCustomCall

SIZES = {"m": 5, "n": 4, "c": 3, "p": 4, "q": 3, "r": 3, "z": 6, "j": 2, "b": 7, "k": 4, "l": 3, "low": 1, "high": 4}
BATCH = (2, 3)
CALLS = [(target, number) for target in sorted(SIGNATURES) for number in range(len(SIGNATURES[target]))]


def attribute(name: str, allowed: str | tuple[str, ...] | None) -> str:
    if allowed is None:
        return f"{SIZES[name]} : i32"
    return f"{ord(allowed[0])} : ui8" if isinstance(allowed, str) else allowed[0]


def config(attributes: dict[str, str]) -> str:
    return "{" + ", ".join(f"{name} = {value}" for name, value in attributes.items()) + "}"


def right_call(target: str, number: int) -> HloCustomCall:
    signature = SIGNATURES[target][number]
    sizes = SIZES | ({"n": 4, "m": 4} if "left" in signature.attributes else {})
    operands, results = (
        [array(word, signature, sizes) for word in side.split()] for side in signature.text.split("->")
    )
    attributes = {name: attribute(name, allowed) for name, allowed in signature.attributes.items()}
    version = signature.api_versions[-1]
    return HloCustomCall(target, version, tuple(operands), tuple(results), config(attributes) if version == 4 else "")


def array(word: str, signature: Signature, sizes: dict[str, int]) -> HloArray:
    dimensions = word[1:]
    batch = BATCH if dimensions.startswith("*") else ()
    shape = tuple(sizes[name] for name in dimensions.removeprefix("*"))
    return HloArray(signature.elements[word[0]][0], (*batch, *shape))


def others(value: HloArray) -> Iterator[HloArray]:
    """Types that differ a little."""
    for place in range(len(value.shape)):
        for change in (-1, 1):
            shape = list(value.shape)
            shape[place] += change
            yield HloArray(value.element, tuple(shape))
    yield HloArray(value.element, value.shape[1:] if value.shape else (1,))
    yield HloArray(value.element, (1, *value.shape))
    for element in ("F32", "F64", "C64", "C128", "S32", "S64", "F16", "PRED", ""):
        if element != value.element:
            yield HloArray(element, value.shape)


def replaced(values: Sequence[HloArray], place: int, value: HloArray) -> tuple[HloArray, ...]:
    return (*values[:place], value, *values[place + 1 :])


def refused(call: HloCustomCall) -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match=f"{call.target} would leave the memory"):
        check_signature(call)


@pytest.mark.parametrize(("target", "number"), CALLS)
def test_a_right_call_passes(target: str, number: int) -> None:
    call = right_call(target, number)
    check_signature(call)
    if call.config == "{}":
        check_signature(call._replace(config=""))
    if "*" in SIGNATURES[target][number].text:
        alone = [
            HloArray(value.element, value.shape[len(BATCH) :]) for value in (*call.operands, *call.results)
        ]  # fmt: skip
        check_signature(
            call._replace(operands=tuple(alone[: len(call.operands)]), results=tuple(alone[len(call.operands) :]))
        )


@pytest.mark.parametrize(("target", "number"), CALLS)
def test_another_shape_or_type_is_refused(target: str, number: int) -> None:
    call = right_call(target, number)
    has_free_size = target in ("TopK", CHECKED_CSR_PRODUCT) or target.endswith(("gqr_ffi", "mqr_ffi"))
    for field in ("operands", "results"):
        values = getattr(call, field)
        for place, value in enumerate(values):
            for other in others(value):
                changed = call._replace(**{field: replaced(values, place, other)})
                if has_free_size and len(other.shape) == len(value.shape) and other.element == value.element:
                    continue  # a size that stands in one place alone may differ; see below
                refused(changed)
        refused(call._replace(**{field: values[:-1]}))
        refused(call._replace(**{field: (*values, values[-1])}))


@pytest.mark.parametrize(("target", "number"), CALLS)
def test_another_attribute_is_refused(target: str, number: int) -> None:
    call = right_call(target, number)
    signature = SIGNATURES[target][number]
    if signature.api_versions == (4,):
        good = {name: attribute(name, allowed) for name, allowed in signature.attributes.items()}
        refused(call._replace(config=config({**good, "more": "1 : i32"})))
        refused(call._replace(config='{more = "text"}'))
        refused(call._replace(config='{"custom_call_config":{"attributes":"{}"}}'))
        for name in good:
            refused(call._replace(config=config({key: value for key, value in good.items() if key != name})))
            for wrong in ("0 : ui8", "33 : ui8", "-7 : i32", "76 : i64", "true : i1", "dense<1> : tensor<1xi32>"):
                refused(call._replace(config=config({**good, name: wrong})))
            doubled = config(good).removesuffix("}") + f", {name} = {good[name]}}}"
            refused(call._replace(config=doubled))
    for version in range(6):
        if version not in signature.api_versions:
            refused(call._replace(api_version=version))


@pytest.mark.parametrize("prefix", ["s", "d", "c", "z"])
def test_sizes_that_are_free_have_bounds(prefix: str) -> None:
    """The reflectors are at most as many as the columns that hold them, and those at most as many as the rows."""
    element = {"s": "F32", "d": "F64", "c": "C64", "z": "C128"}[prefix]

    def call(routine: str, *shapes: tuple[int, ...], config: str = "{}") -> HloCustomCall:
        name = ("un" if prefix in "cz" else "or") + routine
        arrays = [HloArray(element, shape) for shape in shapes]
        return HloCustomCall(f"lapack_{prefix}{name}_ffi", 4, tuple(arrays[:-1]), tuple(arrays[-1:]), config)

    for reflectors in (0, 2, 3):
        check_signature(call("gqr", (5, 3), (reflectors,), (5, 3)))
    refused(call("gqr", (5, 3), (4,), (5, 3)))
    refused(call("gqr", (3, 5), (3,), (3, 5)))
    left, right = (f"{{left = {word}, transpose = false}}" for word in ("true", "false"))
    check_signature(call("mqr", (5, 3), (3,), (5, 9), (5, 9), config=left))
    check_signature(call("mqr", (9, 3), (3,), (5, 9), (5, 9), config=right))
    refused(call("mqr", (5, 3), (3,), (5, 9), (5, 9), config=right))
    refused(call("mqr", (5, 3), (4,), (5, 9), (5, 9), config=left))
    refused(call("mqr", (5, 9), (6,), (5, 9), (5, 9), config=left))
    refused(call("mqr", (4, 3), (3,), (5, 9), (5, 9), config=left))


def test_top_k_takes_no_more_than_there_are() -> None:
    def call(count: int, *batch: int) -> HloCustomCall:
        results = HloArray("F32", (*batch, count)), HloArray("S32", (*batch, count))
        return HloCustomCall("TopK", 1, (HloArray("F32", (*batch, 4)),), results, "")

    for batch in ((), (3,)):
        check_signature(call(4, *batch))
        refused(call(5, *batch))
    refused(call(2, 3, 3))


def test_sizes_beyond_32_bits_are_refused() -> None:
    def potrf(n: int) -> HloCustomCall:
        square = HloArray("F32", (n, n))
        return HloCustomCall("lapack_spotrf_ffi", 4, (square,), (square, HloArray("S32", ())), "{uplo = 76 : ui8}")

    def gesdd(n: int) -> HloCustomCall:
        square, results = HloArray("F32", (n, n)), HloArray("F32", (n,))
        return HloCustomCall(
            "lapack_sgesdd_ffi",
            4,
            (square,),
            (square, results, square, square, HloArray("S32", ())),
            "{mode = 65 : ui8}",
        )

    check_signature(potrf(50_000))
    refused(potrf(2**31))
    check_signature(gesdd(20_000))
    refused(gesdd(24_000))  # the memory that LAPACK needs has more elements than it can count
    refused(potrf(0))


@pytest.mark.parametrize(
    ("low", "high", "passes"), [(1, 4, True), (2, 3, True), (0, 4, False), (1, 5, False), (4, 3, False)]
)
def test_the_rows_of_a_hessenberg_form(low: int, high: int, passes: bool) -> None:
    call = right_call("lapack_dgehrd_ffi", 0)._replace(config=f"{{high = {high} : i32, low = {low} : i32}}")
    if passes:
        check_signature(call)
    else:
        refused(call)


def test_every_target_of_jaxlib_has_signatures() -> None:
    """A target that a newer jaxlib brings must be looked at; until then it is refused."""
    assert _jaxlib.own_targets() - {CSR_PRODUCT} <= SIGNATURES.keys()
    assert CHECKED_CSR_PRODUCT in SIGNATURES
    assert not compilation.JAX_ONLY & SIGNATURES.keys()


def test_a_target_of_jaxlib_without_signatures_is_refused(
    client: pjrt.Client, programs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = right_call("lapack_spotrf_ffi", 0)
    monkeypatch.delitem(SIGNATURES, "lapack_spotrf_ffi")
    with pytest.raises(
        pjrt.UnimplementedError, match="'lapack_spotrf_ffi', whose operands this version of pjrt cannot"
    ):
        compilation._check_call(call, False)
