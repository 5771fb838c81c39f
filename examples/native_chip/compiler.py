"""The compiler of the simulated chip: StableHLO to the instructions that `chip.c` runs.

pjrt export ./compiler.py:compile --driver libchip.so -o chip.so
"""

import math
import struct

import numpy as np

import pjrt
from pjrt import TiledLayout
from pjrt.native import Code, asked_layouts, with_fallback
from pjrt.stablehlo import lowering

OPS = """
CONSTANT IOTA MOVE ADD SUBTRACT MULTIPLY DIVIDE MAXIMUM MINIMUM POWER EQ NE LT LE GT GE NEGATE EXP LOG TANH
SQRT RSQRT ABS SIGN NOT SELECT CONVERT MATMUL SUM MAX_OF ALL_GATHER FAIL
""".split()  # noqa: SIM905  # shorter to read than quotes around each
ELEMENTWISE = {
    "add": "ADD", "subtract": "SUBTRACT", "multiply": "MULTIPLY", "divide": "DIVIDE", "maximum": "MAXIMUM",
    "minimum": "MINIMUM", "power": "POWER", "negate": "NEGATE", "exponential": "EXP", "log": "LOG", "tanh": "TANH",
    "sqrt": "SQRT", "rsqrt": "RSQRT", "abs": "ABS", "sign": "SIGN", "select": "SELECT", "convert": "CONVERT",
}  # fmt: skip
TYPES = ("PRED", "S32", "F32")
MAX_RANK, TILE = 8, (8, 128)
INPUT, OUTPUT, SCRATCH = range(3)


def compile_kernel(program, options):
    """Return the instructions of a program, or of a part of one."""
    entry = program.entry
    compiler = Compiler(options.partitioning)
    asked_parameters, asked_results = asked_layouts(program)
    orders = [
        order_of_uses(entry.body, value) if asked == "auto" else order_of(value, asked)
        for value, asked in zip(entry.arguments, asked_parameters, strict=True)
    ]
    result_orders = [order_of(value, asked) for value, asked in zip(entry.body.outputs, asked_results, strict=True)]
    places = {
        id(value): compiler.parameter(value.type, n, order)
        for n, (value, order) in enumerate(zip(entry.arguments, orders, strict=True))
    }
    results = compiler.block(program, entry.body, places)
    for number, (place, value, order) in enumerate(zip(results, entry.body.outputs, result_orders, strict=True)):
        compiler.result(compiler.in_rows(place), value.type, number, order)
    counts = len(compiler.registers), len(entry.arguments), len(results), len(compiler.code), len(compiler.groups)
    head = struct.pack("8s5i", b"CHIPCODE", *counts)
    groups = struct.pack(f"{len(compiler.groups)}i", *compiler.groups)
    code = head + b"".join(compiler.registers) + b"".join(compiler.code) + groups
    return Code(
        code=code,
        scratch=compiler.scratch * 4,
        cost={"flops": compiler.work},
        parameter_layouts=dict(enumerate(orders)),
        output_layouts=dict(enumerate(result_orders)),
    )


compile = with_fallback(compile_kernel)


def strides_of(shape):
    return [math.prod(shape[n + 1 :]) for n in range(len(shape))]


def words_of(shape):
    """Return the words of an array in tiles, with their padding."""
    if not shape:
        return 1
    if len(shape) == 1:
        return round_up(shape[0], TILE[0] * TILE[1])
    return math.prod(shape[:-2]) * round_up(shape[-2], TILE[0]) * round_up(shape[-1], TILE[1])


def round_up(number, to):
    return -(-number // to) * to


def order_of(value, asked):
    """Return the order of the dimensions that is asked for, the most minor first; rows where none is."""
    return asked.minor_to_major if isinstance(asked, TiledLayout) else tuple(range(len(value.type.shape)))[::-1]


def order_of_uses(body, argument):
    """Return the order in which an argument need not be moved: where all that it is used for is one transpose."""
    users = [operation for operation in body.walk() if any(value is argument for value in operation.operands)]
    turns = {tuple(each.attribute("permutation")) for each in users if each.name == "stablehlo.transpose"}
    is_one = len(turns) == 1 and all(each.name == "stablehlo.transpose" for each in users)
    return turns.pop()[::-1] if is_one else order_of(argument, None)


class Compiler:
    """The registers and instructions of a program. A value is the number of its register."""

    def __init__(self, partitioning):
        self.partitioning, self.turned = partitioning, {}
        self.registers, self.shapes, self.code, self.groups, self.scratch, self.work = [], [], [], [], 0, 0

    def register(self, type_, place=SCRATCH, number=0, shape=None):
        shape = tuple(type_.shape if shape is None else shape)
        if type_.element.name not in TYPES or len(shape) > MAX_RANK:
            raise pjrt.UnimplementedError(f"the chip does not compute with arrays of {type_}")
        if place == SCRATCH:
            number, self.scratch = self.scratch, self.scratch + words_of(shape)
        dims = [*shape, *[0] * (MAX_RANK - len(shape))]
        self.registers.append(struct.pack("12i", type_.element.value, len(shape), *dims, place, number))
        self.shapes.append(shape)
        return len(self.registers) - 1

    def parameter(self, type_, number, order):
        """Return the register of an argument, which `in_rows` turns where it lies in another order."""
        register = self.register(type_, INPUT, number, [type_.shape[d] for d in reversed(order)])
        if list(order) != sorted(order, reverse=True):
            self.turned[register] = (type_, number, order)
        return register

    def in_rows(self, register):
        if register not in self.turned:
            return register
        type_, _, order = self.turned[register]
        steps = dict(zip(reversed(order), strides_of(self.shapes[register]), strict=True))
        return self.move(self.register(type_), register, 0, [steps[d] for d in range(len(steps))])

    def result(self, place, type_, number, order):
        steps = strides_of(type_.shape)
        result = self.register(type_, OUTPUT, number, [type_.shape[d] for d in reversed(order)])
        self.move(result, place, 0, [steps[d] for d in reversed(order)])

    def emit(self, op, result, operands=(), start=0, strides=(), sizes=(), value=b"\0\0\0\0"):
        numbers = [*operands, *[-1] * (3 - len(operands)), start, *strides, *[0] * (MAX_RANK - len(strides))]
        numbers += [*sizes, *[0] * (4 - len(sizes))]
        self.code.append(struct.pack("18i", OPS.index(op), result, *numbers) + value)
        self.work += math.prod(self.shapes[result])
        return result

    def move(self, result, operand, start, strides):
        """Fill a register: an element is that of the operand with the number `start` + indices · `strides`."""
        return self.emit("MOVE", result, [operand], start, strides)

    def block(self, program, block, places):
        """Write the operations of a block, and return the registers of its results."""
        for operation in block.operations:
            inputs = [places[id(value)] for value in operation.operands]
            if operation.name in ("func.return", "stablehlo.return"):
                return inputs
            if operation.name == "func.call":
                called = program.functions[str(operation.attribute("callee")).lstrip("@")]
                outputs = self.block(program, called.body, dict(zip(map(id, called.arguments), inputs, strict=True)))
            else:
                outputs = [self.operation(operation, inputs)]
            places.update(zip(map(id, operation.results), outputs, strict=True))
        return []

    def operation(self, operation, inputs):
        name, attribute = operation.name.removeprefix("stablehlo."), operation.attribute
        if name not in HANDLED or (name == "power" and operation.results[0].type.element.name != "F32"):
            raise pjrt.UnimplementedError(f"the chip has no {operation.name} [{operation.location}]")
        type_ = operation.results[0].type
        if name == "transpose" and inputs[0] in self.turned:
            _, number, order = self.turned[inputs[0]]
            if list(attribute("permutation")) == list(reversed(order)):
                return self.register(type_, INPUT, number)  # the argument lies so
        inputs = [self.in_rows(register) for register in inputs]
        result, shape = self.register(type_), type_.shape
        if name in ELEMENTWISE:
            return self.emit(ELEMENTWISE[name], result, inputs)
        if name == "not" and type_.element.name == "PRED":
            return self.emit("NOT", result, inputs)
        if name == "compare":
            return self.emit(str(attribute("comparison_direction")), result, inputs)
        if name == "custom_call" and str(attribute("call_target_name")) == "chip.fail":
            return self.emit("FAIL", result, value=struct.pack("i", int(attribute("backend_config", "13") or 13)))
        if name == "constant":
            return self.constant(operation, result)
        if name == "iota":
            return self.emit("IOTA", result, strides=[int(d == attribute("iota_dimension")) for d in range(len(shape))])
        if name == "dot_general" and type_.element.name == "F32":
            return self.product(operation, inputs, result)
        if name == "reduce" and lowering.reducer(operation) in ("add", "maximum"):
            return self.reduction(operation, inputs, result)
        if name in COLLECTIVES:
            return self.collective(operation, inputs, result)
        old = operation.operands[0].type.shape if inputs else ()
        steps = strides_of(old)
        if name == "reshape":
            return self.move(result, inputs[0], 0, strides_of(shape))
        if name == "broadcast_in_dim":
            places = dict(zip(attribute("broadcast_dimensions"), range(len(old)), strict=True))
            of = [steps[places[d]] if d in places and old[places[d]] != 1 else 0 for d in range(len(shape))]
            return self.move(result, inputs[0], 0, of)
        if name == "transpose":
            return self.move(result, inputs[0], 0, [steps[d] for d in attribute("permutation")])
        if name == "slice":
            start = sum(s * step for s, step in zip(attribute("start_indices"), steps, strict=True))
            return self.move(
                result, inputs[0], start, [s * by for s, by in zip(steps, attribute("strides"), strict=True)]
            )
        raise pjrt.UnimplementedError(f"the chip has no such {operation.name} [{operation.location}]")

    def collective(self, operation, inputs, result):
        """Gather the operands of a group of chips, each behind the other, and take or reduce what this one gets."""
        name, attribute = operation.name.removeprefix("stablehlo."), operation.attribute
        groups = self.groups_of(operation, name)
        if len(inputs) != 1:
            raise pjrt.UnimplementedError(f"the chips have collectives of one array only [{operation.location}]")
        count, start = len(groups[0]), len(self.groups)
        numbers = {place: number for group in groups for number, place in enumerate(group)}  # in its group
        for place in range(len(numbers)):
            self.groups += next(group for group in groups if place in group)
        type_ = operation.operands[0].type
        shape, steps, size = type_.shape, strides_of(type_.shape), math.prod(type_.shape)
        gathered = self.register(type_, shape=(count, *shape))
        self.emit("ALL_GATHER", gathered, inputs, start, sizes=[count])
        if name == "all_gather":
            return self.joined(gathered, type_, shape, attribute("all_gather_dim"), result)
        if name == "collective_broadcast":
            return self.move(result, gathered, 0, steps)
        if name == "collective_permute":
            sources = {target: source for source, target in self.pairs_of(operation)}
            starts = [sources[place] * size if place in sources else -1 for place in sorted(numbers)]
            return self.move_by_place(result, gathered, starts, steps)
        if name == "all_to_all":
            d, parts = attribute("split_dimension"), list(shape)
            parts[d] //= count
            starts = [numbers[place] * parts[d] * steps[d] for place in sorted(numbers)]
            taken = self.move_by_place(self.register(type_, shape=(count, *parts)), gathered, starts, [size, *steps])
            return self.joined(taken, type_, parts, attribute("concat_dimension"), result)
        reducer = lowering.reducer(operation)
        if reducer not in ("add", "maximum") or type_.element.name != "F32":
            raise pjrt.UnimplementedError(f"the chips add or compare f32 only [{operation.location}]")
        rows = self.register(type_, shape=(*shape, count))
        self.move(rows, gathered, 0, [*steps, size])
        zero = self.register(type_, shape=())
        self.emit("CONSTANT", zero, value=struct.pack("f", 0 if reducer == "add" else -math.inf))
        reduced = result if name == "all_reduce" else self.register(type_)
        self.emit("SUM" if reducer == "add" else "MAX_OF", reduced, [rows, zero], sizes=(size, count, 1))
        if name == "all_reduce":
            return result
        d = attribute("scatter_dimension")
        starts = [numbers[place] * shape[d] // count * steps[d] for place in sorted(numbers)]
        return self.move_by_place(result, reduced, starts, steps)

    def joined(self, parts, type_, shape, d, result):
        """Fill a register with parts of a shape, which lie one behind the other, along a dimension."""
        count, steps = self.shapes[parts][0], strides_of(shape)
        places = self.register(type_, shape=(*shape[:d], count, *shape[d:]))
        self.move(places, parts, 0, [*steps[:d], math.prod(shape), *steps[d:]])
        return self.move(result, places, 0, strides_of(self.shapes[result]))

    def move_by_place(self, result, operand, starts, strides):
        """Move, with another start on each chip; -1 for one that gets zeros."""
        self.groups += starts
        return self.emit("MOVE", result, [operand], 0, strides, sizes=[len(self.groups) - len(starts) + 1])

    def groups_of(self, operation, name):
        """Return the groups of chips that meet, by their places in the program: those of replica 0 first."""
        attribute = operation.attribute
        replicas, partitions = self.partitioning.num_replicas, self.partitioning.num_partitions
        if name == "collective_permute":
            return [list(range(replicas * partitions))]
        table, channel = np.asarray(attribute("replica_groups", [])), attribute("channel_handle", None)
        is_flat, has_channel = attribute("use_global_device_ids", False), channel is not None and channel.handle > 0
        if table.size and table.ndim != 2:
            raise pjrt.UnimplementedError(f"the chips have listed groups only [{operation.location}]")
        of_partitions = has_channel and name in ("all_to_all", "collective_broadcast")
        everybody = replicas * partitions if is_flat else partitions if of_partitions else replicas
        rows = table.tolist() if table.size else [list(range(everybody))]
        if is_flat:
            groups = rows
        elif of_partitions:
            groups = [[r * partitions + p for p in row] for row in rows for r in range(replicas)]
        elif has_channel:  # all partitions of the replicas
            groups = [[r * partitions + p for r in row for p in range(partitions)] for row in rows]
        else:
            groups = [[r * partitions + p for r in row] for row in rows for p in range(partitions)]
        places = sorted(place for group in groups for place in group)
        if places != list(range(replicas * partitions)) or len(set(map(len, groups))) != 1:
            raise pjrt.UnimplementedError(f"the chips have groups of all chips, of one size [{operation.location}]")
        return groups

    def pairs_of(self, operation):
        """Return the places of the chips that give and get."""
        replicas, partitions = self.partitioning.num_replicas, self.partitioning.num_partitions
        pairs, channel = (
            operation.attribute("source_target_pairs").tolist(),
            operation.attribute("channel_handle", None),
        )
        if channel is not None and channel.handle > 0:
            return [(r * partitions + a, r * partitions + b) for r in range(replicas) for a, b in pairs]
        return [(a * partitions + p, b * partitions + p) for a, b in pairs for p in range(partitions)]

    def constant(self, operation, result):
        array = np.asarray(operation.attribute("value"))
        values = array.reshape(-1).astype(np.int32 if array.dtype.kind in "bi" else np.float32)
        if array.size and not (values == values[0]).all():
            raise pjrt.UnimplementedError(f"the chip has constants of one value only [{operation.location}]")
        return self.emit("CONSTANT", result, value=values[:1].tobytes() or b"\0\0\0\0")

    def product(self, operation, inputs, result):
        p = lowering.matrix_product(operation)
        sides = zip(
            inputs, operation.operands, (p.lhs_permutation, p.rhs_permutation), (p.lhs_shape, p.rhs_shape), strict=True
        )
        stacks = []
        for value, operand, permutation, stack in sides:
            steps, shape = strides_of(operand.type.shape), operand.type.shape
            dense = self.register(operand.type, shape=[shape[d] for d in permutation])
            self.move(dense, value, 0, [steps[d] for d in permutation])
            stacks.append(self.move(self.register(operand.type, shape=stack), dense, 0, strides_of(stack)))
        self.work += 2 * p.batch * p.m * p.k * p.n
        return self.emit("MATMUL", result, stacks, sizes=(p.batch, p.m, p.k, p.n))

    def reduction(self, operation, inputs, result):
        """Move what is reduced to the last dimensions, and reduce rows."""
        operand = operation.operands[0].type
        reduced = list(operation.attribute("dimensions"))
        kept = [d for d in range(len(operand.shape)) if d not in reduced]
        steps = strides_of(operand.shape)
        rows = self.register(operand, shape=[operand.shape[d] for d in (*kept, *reduced)])
        self.move(rows, inputs[0], 0, [steps[d] for d in (*kept, *reduced)])
        count = math.prod(operand.shape[d] for d in reduced)
        op = "SUM" if lowering.reducer(operation) == "add" else "MAX_OF"
        return self.emit(op, result, [rows, inputs[1]], sizes=(math.prod(self.shapes[result]), count, 1))


COLLECTIVES = ("all_gather", "all_reduce", "all_to_all", "collective_broadcast", "collective_permute", "reduce_scatter")
HANDLED = {*ELEMENTWISE, *COLLECTIVES, "not", "compare", "custom_call", "constant", "iota", "dot_general",
           "reduce", "reshape", "broadcast_in_dim", "transpose", "slice"}  # fmt: skip
