"""Cases of products, convolutions, solvers, Fourier transforms, batch normalization, and random numbers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.conformance import values
from pjrt.conformance.operation_table import (
    EXACT,
    FUNCTION,
    ROUNDED,
    SOLVED,
    Accuracy,
    Array,
    OperationCase,
    cases,
    program_text,
    tensor,
    type_of,
)
from pjrt.conformance.values import COMPLEX, FLOATS, NUMBERS

# Products and convolutions take small integers: their sums are exact in most types, so that the order of the additions,
# and a wider type for them, make no difference.

Shape = tuple[int, ...]
_WIDE = (ElementType.F32, ElementType.F64)


def _case(
    operation: str,
    element: ElementType,
    name: str,
    text: str,
    inputs: Sequence[Array],
    results: Sequence[str],
    accuracy: Accuracy = EXACT,
) -> OperationCase:
    """Return a case; ``text`` is the operation without its types."""
    types = [type_of(each) for each in inputs]
    outer = results[0] if len(results) == 1 else f"({', '.join(results)})"
    program = program_text(f"{text} : ({', '.join(types)}) -> {outer}", types, results)
    return OperationCase(operation, element, name, program, tuple(inputs), accuracy)


@cases("dot_general", NUMBERS)
def _dot_general(operation: str, element: ElementType) -> Iterator[OperationCase]:
    forms: dict[str, tuple[Shape, Shape, str, Shape]] = {
        "of matrices": ((3, 5), (5, 4), "contracting_dims = [1] x [0]", (3, 4)),
        "transposed": ((5, 3), (4, 5), "contracting_dims = [0] x [1]", (3, 4)),
        "of vectors": ((7,), (7,), "contracting_dims = [0] x [0]", ()),
        "in batches": ((2, 3, 5), (2, 5, 4), "batching_dims = [0] x [0], contracting_dims = [2] x [1]", (2, 3, 4)),
        "over two dimensions": ((3, 2, 2), (2, 2, 4), "contracting_dims = [1, 2] x [0, 1]", (3, 4)),
        "outer product": ((3,), (2,), "contracting_dims = [] x []", (3, 2)),
        "of nothing": ((3, 0), (0, 4), "contracting_dims = [1] x [0]", (3, 4)),
        "with an empty result": ((0, 5), (5, 4), "contracting_dims = [1] x [0]", (0, 4)),
        "large": ((65, 33), (33, 67), "contracting_dims = [1] x [0]", (65, 67)),
    }
    for name, (left, right, numbers, shape) in forms.items():
        if name == "large" and not (element in _WIDE or element.is_complex):
            continue  # such sums leave the range in which small types are exact
        inputs = values.exact(element, left), values.exact(element, right, seed=1)
        yield _case(operation, element, name, f"{operation} %x, %y, {numbers}", inputs, [tensor(shape, element)])
    edges = values.edges(element)
    inputs = edges.reshape(-1, 1), edges.reshape(1, -1)
    text = f"{operation} %x, %y, contracting_dims = [1] x [0]"
    accuracy = FUNCTION if element.is_complex else ROUNDED
    yield _case(operation, element, "of edge values", text, inputs, [tensor((edges.size,) * 2, element)], accuracy)


@cases("dot", NUMBERS)
def _dot(operation: str, element: ElementType) -> Iterator[OperationCase]:
    for name, left, right, shape in (("of matrices", (3, 5), (5, 4), (3, 4)), ("of vectors", (7,), (7,), ())):
        inputs = values.exact(element, left), values.exact(element, right, seed=1)
        yield _case(operation, element, name, f"{operation} %x, %y", inputs, [tensor(shape, element)])


@cases("einsum", NUMBERS)
def _einsum(operation: str, element: ElementType) -> Iterator[OperationCase]:
    inputs = values.exact(element, (3, 5)), values.exact(element, (5, 4), seed=1)
    text = f'{operation} %x, %y, config = "ij,jk->ik"'
    yield _case(operation, element, "of matrices", text, inputs, [tensor((3, 4), element)])


@cases("convolution", NUMBERS)
def _convolution(operation: str, element: ElementType) -> Iterator[OperationCase]:
    forms: dict[str, tuple[Shape, str, int, Shape]] = {
        "of an image": ((2, 2, 2, 3), "", 1, (1, 3, 4, 3)),
        "with padding": ((2, 2, 2, 3), "pad = [[1, 0], [0, 1]]", 1, (1, 4, 5, 3)),
        "with strides": ((2, 2, 2, 3), "stride = [2, 1]", 1, (1, 2, 4, 3)),
        "dilated": ((2, 2, 2, 3), "rhs_dilate = [2, 3]", 1, (1, 2, 2, 3)),
        "of a dilated image": ((2, 2, 2, 3), "lhs_dilate = [2, 1]", 1, (1, 6, 4, 3)),
        "in groups": ((2, 2, 1, 4), "", 2, (1, 3, 4, 4)),
        "reversed": ((2, 2, 2, 3), "reverse = [true, true]", 1, (1, 3, 4, 3)),
        "reversed, in groups": ((2, 2, 1, 4), "reverse = [true, false]", 2, (1, 3, 4, 4)),
        "with less than no padding": ((2, 2, 2, 3), "pad = [[-1, 0], [0, -2]]", 1, (1, 2, 2, 3)),
    }
    for name, (kernel, window, groups, shape) in forms.items():
        inputs = values.exact(element, (1, 4, 5, 2)), values.exact(element, kernel, seed=1)
        text = (
            f"{operation}(%x, %y) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {{{window}}} "
            f"{{feature_group_count = {groups} : i64, batch_group_count = 1 : i64}}"
        )
        yield _case(operation, element, name, text, inputs, [tensor(shape, element)])


@cases("cholesky", _WIDE + COMPLEX)
def _cholesky(operation: str, element: ElementType) -> Iterator[OperationCase]:
    root = values.ordinary(element, (2, 4, 4))
    matrix = root @ np.conj(root.swapaxes(-1, -2)) + 4 * np.eye(4, dtype=root.dtype)
    type_ = type_of(matrix)
    # The other half of the result is the implementation's: the cases take the half that is defined.
    program = program_text(f"{operation} %x, lower = true : {type_}", [type_], [type_])
    judged = OperationCase(operation, element, "lower", program, (matrix,), SOLVED, verify=_squares(matrix))
    yield judged


def _squares(matrix: Array):  # type: ignore[no-untyped-def]
    def verify(results: Sequence[Array]) -> str:
        lower = np.tril(results[0])
        error = float(np.abs(lower @ np.conj(lower.swapaxes(-1, -2)) - matrix).max() / np.abs(matrix).max())
        allowed = SOLVED.wide * float(np.finfo(matrix.dtype).eps)
        return "" if error <= allowed else f"the square of the result is off by {error:.3g}, more than {allowed:.3g}"

    return verify


@cases("triangular_solve", _WIDE + COMPLEX)
def _triangular_solve(operation: str, element: ElementType) -> Iterator[OperationCase]:
    matrix = np.tril(values.ordinary(element, (2, 4, 4))) + 4 * np.eye(4, dtype=element.dtype)
    right = values.ordinary(element, (2, 4, 3), seed=1)
    for name, left_side, lower, transpose in (
        ("lower", True, True, "NO_TRANSPOSE"),
        ("transposed", True, True, "TRANSPOSE"),
        ("upper", True, False, "NO_TRANSPOSE"),
        ("adjoint, from the right", False, True, "ADJOINT"),
    ):
        inputs = matrix if lower else matrix.swapaxes(1, 2).copy(), right if left_side else right.swapaxes(1, 2).copy()
        types = [type_of(each) for each in inputs]
        text = (
            f'"{operation}"(%x, %y) <{{left_side = {str(left_side).lower()}, lower = {str(lower).lower()}, '
            f"unit_diagonal = false, transpose_a = #stablehlo<transpose {transpose}>}}>"
        )
        yield _case(operation, element, name, text, inputs, [types[1]], SOLVED)


@cases("fft", _WIDE + COMPLEX)
def _fft(operation: str, element: ElementType) -> Iterator[OperationCase]:
    wide = {ElementType.F32: ElementType.C64, ElementType.F64: ElementType.C128}
    if element in wide:
        for length in (6, 8):
            name, inputs = f"RFFT of {length}", [values.ordinary(element, (3, length))]
            outer = tensor((3, length // 2 + 1), wide[element])
            text = f"{operation} %x, type = RFFT, length = [{length}]"
            yield _case(operation, element, name, text, inputs, [outer], SOLVED)
        return
    real = ElementType.F32 if element is ElementType.C64 else ElementType.F64
    for kind, lengths in itertools.product(("FFT", "IFFT"), ((5,), (8,), (4, 8))):
        shape = (3, *lengths)
        text = f"{operation} %x, type = {kind}, length = [{', '.join(map(str, lengths))}]"
        name = f"{kind} of {'x'.join(map(str, lengths))}"
        yield _case(operation, element, name, text, [values.ordinary(element, shape)], [tensor(shape, element)], SOLVED)
    for length in (6, 8):
        half = np.fft.rfft(values.ordinary(real, (3, length))).astype(element.dtype)
        text = f"{operation} %x, type = IRFFT, length = [{length}]"
        yield _case(operation, element, f"IRFFT of {length}", text, [half], [tensor((3, length), real)], SOLVED)


@cases("batch_norm_inference batch_norm_training batch_norm_grad", [each for each in FLOATS if each.bits >= 16])
def _batch_norm(operation: str, element: ElementType) -> Iterator[OperationCase]:
    image, feature = values.ordinary(element, (4, 2, 3)), tensor((3,), element)
    scale, offset, mean = (values.ordinary(element, (3,), seed) for seed in (1, 2, 3))
    variance = np.abs(values.ordinary(element, (3,), seed=4)) + np.ones((), element.dtype)
    attributes = "<{epsilon = 0.001 : f32, feature_index = 2 : i64}>"
    whole = type_of(image)
    inputs, results = {
        "inference": ([image, scale, offset, mean, variance], [whole]),
        "training": ([image, scale, offset], [whole, feature, feature]),
        "grad": ([image, scale, mean, variance, values.ordinary(element, (4, 2, 3), 5)], [whole, feature, feature]),
    }[operation.rpartition("_")[2]]
    operands = ", ".join(f"%{name}" for name, _ in zip("xyzuv", inputs, strict=False))
    text = f'"{operation}"({operands}) {attributes}'
    yield _case(operation, element, "of the last dimension", text, inputs, results, SOLVED)


# Random numbers, whose values an implementation may choose: only their properties are tested.

_MANY = 10_000


@cases("rng", [ElementType.F32, ElementType.F64])
def _rng(operation: str, element: ElementType) -> Iterator[OperationCase]:
    inputs = np.array(-2, element.dtype), np.array(4, element.dtype), np.array([_MANY], np.int64)
    scalar, outer = f"tensor<{element.mlir}>", f"tensor<{_MANY}x{element.mlir}>"
    types = [scalar, scalar, "tensor<1xi64>"]
    for distribution, verify in (("UNIFORM", _uniform), ("NORMAL", _normal)):
        text = f"{operation} %x, %y, %z, distribution = {distribution} : ({', '.join(types)}) -> {outer}"
        program = program_text(text, types, [outer])
        yield OperationCase(operation, element, distribution.lower(), program, inputs, verify=verify)


def _uniform(results: Sequence[Array]) -> str:
    numbers = results[0].astype(np.float64)
    if not ((numbers >= -2) & (numbers <= 4)).all():
        return f"expected numbers from -2 to 4, found {numbers.min()} to {numbers.max()}"
    return _moments(numbers, 1.0, 6 / 12**0.5)


def _normal(results: Sequence[Array]) -> str:
    return _moments(results[0].astype(np.float64), -2.0, 4.0)


def _moments(numbers: Array, mean: float, deviation: float) -> str:
    """Return the problem of numbers that are six standard errors or more from their distribution."""
    error = 6 * deviation / numbers.size**0.5
    if abs(float(numbers.mean()) - mean) > error:
        return f"expected numbers with the mean {mean}, found {numbers.mean():.4g}"
    if abs(float(numbers.std()) - deviation) > error:
        return f"expected numbers with the standard deviation {deviation:.4g}, found {numbers.std():.4g}"
    return ""


@cases("rng_bit_generator", [ElementType.U8, ElementType.U32, ElementType.U64, ElementType.S32])
def _rng_bit_generator(operation: str, element: ElementType) -> Iterator[OperationCase]:
    types = ["tensor<2xui64>", f"tensor<{_MANY}x{element.mlir}>"]
    inputs = (np.array([1, 2], np.uint64),)
    for algorithm in ("DEFAULT", "THREE_FRY"):
        text = f"{operation} %x, algorithm = {algorithm} : ({types[0]}) -> ({', '.join(types)})"
        program = program_text(text, types[:1], types)
        # The bits of a named algorithm are defined; those of the default one are the implementation's.
        verify = _bits if algorithm == "DEFAULT" else None
        yield OperationCase(operation, element, algorithm, program, inputs, verify=verify)


def _bits(results: Sequence[Array]) -> str:
    ones = float(np.unpackbits(np.ascontiguousarray(results[1]).view(np.uint8)).mean())
    if abs(ones - 0.5) > 0.01:
        return f"expected as many ones as zeros among the bits, found {ones:.1%} ones"
    return "" if (results[0] != [1, 2]).any() else "expected a new state, found that of the argument"
