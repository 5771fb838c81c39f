"""A small compiler: StableHLO to C, the system's compiler to a shared object, and the runtime's driver `host`.

    pjrt export ./compiler.py:compile --driver host --name emitted -o emitted.so

JAX then loads `emitted.so` as any plugin. No Python runs in its process but its own: this file runs in another one. The
reference interpreter runs what is not translated here, in a third one.
"""

import math
import os
import subprocess
import tempfile
from pathlib import Path

import numpy as np

import pjrt
from pjrt.native import Code, with_fallback
from pjrt.stablehlo import TensorType, lowering

TYPES = {
    "PRED": "uint8_t", "S8": "int8_t", "S16": "int16_t", "S32": "int32_t", "S64": "int64_t",
    "U8": "uint8_t", "U16": "uint16_t", "U32": "uint32_t", "U64": "uint64_t", "F32": "float", "F64": "double",
}  # fmt: skip
BINARY = {
    "add": "{0} + {1}", "subtract": "{0} - {1}", "multiply": "{0} * {1}", "divide": "{0} / {1}",
    "and": "{0} & {1}", "or": "{0} | {1}", "xor": "{0} ^ {1}",
    "maximum": "larger({0}, {1})", "minimum": "smaller({0}, {1})", "power": "pow({0}, {1})",
}  # fmt: skip
UNARY = {
    "negate": "-{0}", "exponential": "exp({0})", "log": "log({0})",
    "log_plus_one": "log1p({0})", "exponential_minus_one": "expm1({0})", "tanh": "tanh({0})", "sqrt": "sqrt({0})",
    "rsqrt": "1 / sqrt({0})", "cosine": "cos({0})", "sine": "sin({0})", "floor": "floor({0})", "ceil": "ceil({0})",
    "logistic": "1 / (1 + exp(-{0}))", "sign": "({0} > 0 ? 1 : {0} < 0 ? -1 : {0})",
}  # fmt: skip
REDUCTIONS = {"add": BINARY["add"], "multiply": BINARY["multiply"], "maximum": BINARY["maximum"],
              "minimum": BINARY["minimum"], "and": BINARY["and"], "or": BINARY["or"]}  # fmt: skip
COMPARISONS = {"EQ": "==", "NE": "!=", "LT": "<", "LE": "<=", "GT": ">", "GE": ">="}
HEAD = """#include <stdint.h>
#include <string.h>
#include <tgmath.h>
#define larger(a, b) ((a) != (a) ? (a) : (a) < (b) || (b) != (b) ? (b) : (a))
#define smaller(a, b) ((a) != (a) ? (a) : (b) < (a) || (b) != (b) ? (b) : (a))
"""


def translate(program, options):
    """Return the C of a program, and its writer."""
    writer = Writer()
    entry = program.entry
    places = {id(value): writer.pointer(value, f"inputs[{n}]") for n, value in enumerate(entry.arguments)}
    results = writer.block(program, entry.body, places)
    for number, (place, value) in enumerate(zip(results, entry.body.outputs, strict=True)):
        writer.lines.append(f"memmove(outputs[{number}], {place}, {size_of(value)});")
    source = (
        f"{HEAD}const int64_t pjrt_program_work = {writer.work};\n"
        "int pjrt_program(void *const *inputs, void *const *outputs, void *scratch, char *message) {\n  "
        + "\n  ".join(writer.lines)
        + "\n  return 0;\n}\n"
    )
    return source, writer


def compile_kernel(program, options):
    """Return the shared object of a program, or of a part of one, for the runtime's driver `host`."""
    source, writer = translate(program, options)
    return Code(code=shared_object(source), scratch=writer.scratch, cost={"flops": writer.work})


compile = with_fallback(compile_kernel, covers=translate)


def shared_object(source):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "program.c")
        path.write_text(source)
        command = [os.environ.get("CC", "cc"), "-O2", "-march=native", "-shared", "-fPIC", "-w", str(path)]
        done = subprocess.run([*command, "-o", f"{path}.so", "-lm"], capture_output=True, text=True, check=False)
        if done.returncode:
            raise pjrt.InternalError(f"the C compiler refused the program: {done.stderr[-2000:]}")
        return Path(f"{path}.so").read_bytes()


def size_of(value):
    return math.prod(value.type.shape) * value.type.dtype.itemsize


def strides_of(shape):
    return [math.prod(shape[n + 1 :]) for n in range(len(shape))]


class Writer:
    """The statements of a program. Each value is a pointer: an argument, or a place in the scratch memory."""

    def __init__(self):
        self.lines, self.scratch, self.work = [], 0, 0

    def type_of(self, value):
        name = value.type.element.name if isinstance(value.type, TensorType) else str(value.type)
        if name not in TYPES:
            raise pjrt.UnimplementedError(f"this device has no arrays of {name}")
        return TYPES[name]

    def pointer(self, value, expression):
        return f"(({self.type_of(value)} *){expression})"

    def place(self, value):
        pointer = self.pointer(value, f"((char *)scratch + {self.scratch})")
        self.scratch = (self.scratch + size_of(value) + 63) // 64 * 64
        return pointer

    def block(self, program, block, places):
        """Write the operations of a block, and return where its results are."""
        for operation in block.operations:
            inputs = [places[id(value)] for value in operation.operands]
            if operation.name in ("func.return", "stablehlo.return"):
                return inputs
            if operation.name == "func.call":
                called = program.functions[str(operation.attribute("callee")).lstrip("@")]
                inside = dict(zip(map(id, called.arguments), inputs, strict=True))
                outputs = self.block(program, called.body, inside)
            else:
                outputs = [self.operation(operation, inputs)]
            places.update(zip(map(id, operation.results), outputs, strict=True))
        return []

    def operation(self, operation, inputs):
        """Write one operation, and return where its result is."""
        name = operation.name.removeprefix("stablehlo.")
        if len(operation.results) != 1:
            raise pjrt.UnimplementedError(f"this device has no {operation.name} [{operation.location}]")
        result = operation.results[0]
        if name == "reshape":
            return inputs[0]
        if name in ("copy", "optimization_barrier") and len(inputs) == 1:
            return inputs[0]
        place, shape = self.place(result), result.type.shape
        self.work += math.prod(shape)
        if (expression := self.elementwise(operation, name)) is not None:
            values = [f"{each}[i]" for each in inputs]
            self.lines.append(
                f"for (int64_t i = 0; i < {math.prod(shape)}; ++i) {place}[i] = {expression.format(*values)};"
            )
        elif name == "constant":
            self.constant(operation, place)
        elif name in ("dot_general", "dot"):
            self.product(operation, inputs, place)
        elif name == "reduce":
            self.reduction(operation, inputs, place)
        elif (index := self.index(operation, name)) is not None:
            self.loops(shape, f"{place}[at] = {inputs[0] + '[' + index + ']' if inputs else index};")
        else:
            raise pjrt.UnimplementedError(f"this device has no {operation.name} [{operation.location}]")
        return place

    def elementwise(self, operation, name):
        """Return the expression of an element of the result, of the operands' elements {0}, {1}, …."""
        kind = operation.results[0].type.element.name if operation.results else ""
        if name == "power" and not kind.startswith("F"):
            return None
        if name == "abs":
            return "fabs({0})" if kind.startswith("F") else "({0} < 0 ? -{0} : {0})"
        if name in BINARY:
            return BINARY[name]
        if name == "not":
            return "!{0}" if kind == "PRED" else "~{0}"
        if name in UNARY:
            return UNARY[name]
        if name == "compare":
            return f"{{0}} {COMPARISONS[str(operation.attribute('comparison_direction'))]} {{1}}"
        if name == "select" and operation.operands[0].type.shape == operation.results[0].type.shape:
            return "{0} ? {1} : {2}"
        if name == "convert":
            return "{0} != 0" if kind == "PRED" else "{0}"
        return None

    def constant(self, operation, place):
        array = np.ascontiguousarray(operation.attribute("value")).reshape(-1)
        data = array.view(np.uint8)
        if array.size and (data == 0).all():
            self.lines.append(f"memset({place}, 0, {array.nbytes});")
            return
        width = array.dtype.itemsize
        is_one = array.size > 1 and (data.reshape(-1, width) == data[:width]).all()  # number for all elements
        numbers = ",".join(map(str, data[:width] if is_one else data))
        copy = f"memcpy({place}, data, {array.nbytes});"
        if is_one:
            copy = f"for (int64_t i = 0; i < {array.size}; ++i) memcpy({place} + i, data, {width});"
        self.lines.append(f"{{ static const uint8_t data[] = {{{numbers}}}; {copy} }}")

    def index(self, operation, name):
        """Return where the element with the indices i0, i1, … of the result comes from; or for iota its value."""
        attribute = operation.attribute
        if name == "iota":
            return f"i{attribute('iota_dimension')}"
        if name not in ("broadcast_in_dim", "transpose", "slice", "reverse"):
            return None
        shape = operation.operands[0].type.shape
        if name == "broadcast_in_dim":
            indices = [
                f"i{d}" if n != 1 else "0" for d, n in zip(attribute("broadcast_dimensions"), shape, strict=True)
            ]
        elif name == "transpose":
            permutation = list(attribute("permutation"))
            indices = [f"i{permutation.index(d)}" for d in range(len(shape))]
        elif name == "reverse":
            backwards = set(attribute("dimensions"))
            indices = [f"({n - 1} - i{d})" if d in backwards else f"i{d}" for d, n in enumerate(shape)]
        else:
            pairs = zip(attribute("start_indices"), attribute("strides"), strict=True)
            indices = [f"({start} + i{d} * {step})" for d, (start, step) in enumerate(pairs)]
        return " + ".join(f"{each} * {stride}" for each, stride in zip(indices, strides_of(shape), strict=True)) or "0"

    def loops(self, shape, statement):
        """Write loops over all indices i0, i1, … with their place `at` in rows."""
        heads = "".join(f"for (int64_t i{d} = 0; i{d} < {n}; ++i{d}) " for d, n in enumerate(shape))
        at = " + ".join(f"i{d} * {stride}" for d, stride in enumerate(strides_of(shape))) or "0"
        self.lines.append(f"{heads}{{ const int64_t at = {at}; {statement} }}")

    def product(self, operation, inputs, place):
        p = lowering.matrix_product(operation)
        left, right = operation.operands

        def strides(value, permutation, groups):
            """Return the index into the operand, of the numbers of a row of its dimensions in groups."""
            of, terms = strides_of(value.type.shape), []
            for group, variable in groups:
                rest = variable
                for dimension in reversed(group):
                    size = value.type.shape[dimension]
                    terms.append(f"({rest}) % {size} * {of[dimension]}")
                    rest = f"({rest}) / {size}"
            return " + ".join(terms) or "0"

        if operation.name == "stablehlo.dot":
            num_batch, num_sum = 0, 1
        else:
            numbers = operation.attribute("dot_dimension_numbers")
            num_batch, num_sum = len(numbers.lhs_batching_dimensions), len(numbers.lhs_contracting_dimensions)
        lhs, rhs = p.lhs_permutation, p.rhs_permutation
        lhs_at = strides(left, lhs, [(lhs[:num_batch], "b"), (lhs[num_batch : len(lhs) - num_sum], "m"),
                                     (lhs[len(lhs) - num_sum :], "k")])  # fmt: skip
        rhs_at = strides(right, rhs, [(rhs[:num_batch], "b"), (rhs[num_batch : num_batch + num_sum], "k"),
                                      (rhs[num_batch + num_sum :], "n")])  # fmt: skip
        self.work += 2 * p.batch * p.m * p.k * p.n
        self.lines.append(
            f"memset({place}, 0, {size_of(operation.results[0])}); "
            f"for (int64_t b = 0; b < {p.batch}; ++b) for (int64_t m = 0; m < {p.m}; ++m) "
            f"for (int64_t k = 0; k < {p.k}; ++k) {{ const {self.type_of(left)} x = {inputs[0]}[{lhs_at}]; "
            f"for (int64_t n = 0; n < {p.n}; ++n) "
            f"{place}[(b * {p.m} + m) * {p.n} + n] += x * {inputs[1]}[{rhs_at}]; }}"
        )

    def reduction(self, operation, inputs, place):
        function = lowering.reducer(operation)
        if function not in REDUCTIONS or len(inputs) != 2:
            raise pjrt.UnimplementedError(f"this device has no such reduction [{operation.location}]")
        shape, reduced = operation.operands[0].type.shape, set(operation.attribute("dimensions"))
        kept = [d for d in range(len(shape)) if d not in reduced]
        of = strides_of([shape[d] for d in kept])
        target = " + ".join(f"i{d} * {stride}" for d, stride in zip(kept, of, strict=True)) or "0"
        self.work += math.prod(shape)
        self.lines.append(
            f"for (int64_t i = 0; i < {math.prod(shape[d] for d in kept)}; ++i) {place}[i] = {inputs[1]}[0];"
        )
        step = REDUCTIONS[function].format(f"{place}[{target}]", f"{inputs[0]}[at]")
        self.loops(shape, f"{place}[{target}] = {step};")
