# cython: language_level=3, cdivision=True
"""Chains of integer operations on few elements, without a call of numpy for each."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from numpy import ascontiguousarray, empty

ctypedef fused word:
    uint32_t
    uint64_t

cdef enum:
    ADD, SUBTRACT, MULTIPLY, NEGATE, AND, OR, XOR, NOT, SHIFT_LEFT, SHIFT_RIGHT_LOGICAL, SHIFT_RIGHT_ARITHMETIC
    BLOCK = 64  # elements that are computed at a time, so that all registers stay in the cache

OPERATIONS = {
    "stablehlo.add": ADD,
    "stablehlo.subtract": SUBTRACT,
    "stablehlo.multiply": MULTIPLY,
    "stablehlo.negate": NEGATE,
    "stablehlo.and": AND,
    "stablehlo.or": OR,
    "stablehlo.xor": XOR,
    "stablehlo.not": NOT,
    "stablehlo.shift_left": SHIFT_LEFT,
    "stablehlo.shift_right_logical": SHIFT_RIGHT_LOGICAL,
    "stablehlo.shift_right_arithmetic": SHIFT_RIGHT_ARITHMETIC,
}
"""The numbers of operations, by their names. Results are modulo two to the number of bits, as StableHLO has them."""

cdef struct Instruction:
    int operation
    int target
    int first
    int second


cdef class IntegerChain:
    """A chain, which computes with registers: arrays of a block each.

    Args:
        instructions: number of the operation, and the registers of its result and of its operands. One that takes one
            operand has it twice.
        operands: how many operands the chain has, in the first registers; no result is written there.
        results: the registers of the chain's results.
        shape, dtype: those of the results; the dtype is an integer of 32 or 64 bits.
    """

    cdef Instruction *_code
    cdef Py_ssize_t _length, _registers, _operands, _width
    cdef tuple _results
    cdef object _shape, _dtype

    def __cinit__(self, instructions, operands, results, shape, dtype):
        self._length, self._operands, self._width = len(instructions), operands, dtype.itemsize
        self._results, self._shape, self._dtype = tuple(results), shape, dtype
        self._registers = max([operands] + [target + 1 for _, target, _, _ in instructions])
        self._code = <Instruction *>malloc(self._length * sizeof(Instruction))
        if self._code == NULL:
            raise MemoryError()
        for i, (operation, target, first, second) in enumerate(instructions):
            self._code[i] = Instruction(operation, target, first, second)

    def __dealloc__(self):
        free(self._code)

    def __call__(self, operands) -> object:
        """Return the result, or a list of the results.

        Args:
            operands: arrays of the chain's shape, or of one element, of its dtype.

        Raises:
            ValueError: an operand has another number of elements.
        """
        arrays = [ascontiguousarray(operand) for operand in operands]
        results = [empty(self._shape, self._dtype) for _ in self._results]
        cdef Py_ssize_t held = 0, i
        cdef Py_ssize_t count = len(arrays) + len(results)
        cdef Py_buffer *views = <Py_buffer *>malloc(count * sizeof(Py_buffer))
        cdef char *registers = <char *>malloc(self._registers * BLOCK * self._width)
        try:
            if views == NULL or registers == NULL:
                raise MemoryError()
            for array in arrays:
                PyObject_GetBuffer(array, &views[held], PyBUF_SIMPLE)
                held += 1
            for array in results:
                PyObject_GetBuffer(array, &views[held], PyBUF_WRITABLE)
                held += 1
            for i in range(self._operands):
                if views[i].len not in (self._width, views[self._operands].len):
                    sizes = f"{self._width} or {views[self._operands].len} bytes, found {views[i].len}"
                    raise ValueError(f"operand {i} of a chain: expected {sizes}")
            if self._width == 4:
                self._run[uint32_t](<uint32_t *>registers, views)
            else:
                self._run[uint64_t](<uint64_t *>registers, views)
        finally:
            for i in range(held):
                PyBuffer_Release(&views[i])
            free(views)
            free(registers)
        return results[0] if len(results) == 1 else results

    cdef void _run(self, word *registers, Py_buffer *views):
        cdef Py_ssize_t size = views[self._operands].len // self._width
        cdef Py_ssize_t start, count, i, j
        cdef int register
        for i in range(self._operands):
            if views[i].len == self._width:
                for j in range(min(size, BLOCK)):
                    registers[i * BLOCK + j] = (<word *>views[i].buf)[0]
        for start in range(0, size, BLOCK):
            count = min(BLOCK, size - start)
            for i in range(self._operands):
                if views[i].len != self._width:
                    memcpy(registers + i * BLOCK, <word *>views[i].buf + start, count * self._width)
            for i in range(self._length):
                _compute(
                    self._code[i].operation,
                    registers + self._code[i].target * BLOCK,
                    registers + self._code[i].first * BLOCK,
                    registers + self._code[i].second * BLOCK,
                    count,
                )
            for i in range(len(self._results)):
                register = self._results[i]
                memcpy(<word *>views[self._operands + i].buf + start, registers + register * BLOCK, count * self._width)


cdef void _compute(int operation, word *out, word *x, word *y, Py_ssize_t count) noexcept:
    cdef Py_ssize_t i
    cdef word bits = 8 * sizeof(word)
    cdef word amount
    if operation == ADD:
        for i in range(count):
            out[i] = x[i] + y[i]
    elif operation == SUBTRACT:
        for i in range(count):
            out[i] = x[i] - y[i]
    elif operation == MULTIPLY:
        for i in range(count):
            out[i] = x[i] * y[i]
    elif operation == NEGATE:
        for i in range(count):
            out[i] = -x[i]
    elif operation == AND:
        for i in range(count):
            out[i] = x[i] & y[i]
    elif operation == OR:
        for i in range(count):
            out[i] = x[i] | y[i]
    elif operation == XOR:
        for i in range(count):
            out[i] = x[i] ^ y[i]
    elif operation == NOT:
        for i in range(count):
            out[i] = ~x[i]
    elif operation == SHIFT_LEFT:
        for i in range(count):
            out[i] = x[i] << y[i] if y[i] < bits else 0
    elif operation == SHIFT_RIGHT_LOGICAL:
        for i in range(count):
            out[i] = x[i] >> y[i] if y[i] < bits else 0
    else:
        for i in range(count):
            amount = y[i] if y[i] < bits else bits - 1
            if word is uint32_t:
                out[i] = <uint32_t>(<int32_t>x[i] >> amount)
            else:
                out[i] = <uint64_t>(<int64_t>x[i] >> amount)
