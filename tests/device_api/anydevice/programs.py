"""The programs of the tests, for devices that read the tiny format and for those that read StableHLO.

Shapes are tuples, elements are f32 unless an element type is given. A device that cannot run a program raises
`Absent`, which skips the test.
"""

from __future__ import annotations

import abc

from tiny import TinyProgram

from pjrt.api.element_type import ElementType
from pjrt.api.program import Program


class Absent(Exception):  # noqa: N818 - it is no error
    """The device does not have what the test is about."""


class Programs(abc.ABC):
    """Programs, each made by a method; p0, p1, … are the parameters."""

    @abc.abstractmethod
    def identity(self, shape: tuple[int, ...], element_type: ElementType = ElementType.F32) -> Program:
        """Return p0."""

    @abc.abstractmethod
    def add(self, shape: tuple[int, ...]) -> Program:
        """Return p0 + p1; the program's name is "adder"."""

    @abc.abstractmethod
    def double(self, shape: tuple[int, ...], *, donate: bool = False) -> Program:
        """Return p0 + p0, in the memory of p0 if it is donated."""

    @abc.abstractmethod
    def itself_and_negative(self, shape: tuple[int, ...]) -> Program:
        """Return two outputs: p0 and -p0."""

    @abc.abstractmethod
    def all_reduce(self, shape: tuple[int, ...], num_replicas: int) -> Program:
        """Return the sum of p0 over all replicas."""

    @abc.abstractmethod
    def replica_id(self) -> Program:
        """Return the number of the replica, u32[]."""

    @abc.abstractmethod
    def partition_id(self) -> Program:
        """Return the number of the partition, u32[]."""

    def fail(self, code: int, message: str, payload: tuple[str, str] | None = None) -> Program:
        """Fail: a program without parameters whose one output, f32[2], is an error."""
        raise Absent("a program that fails")

    def send(self, shape: tuple[int, ...], channel: int, chunks: int = 1) -> Program:
        """Send p0 to the host and returns it."""
        raise Absent("a program that sends to the host")

    def receive(self, shape: tuple[int, ...], channel: int) -> Program:
        """Return the value that the host sends."""
        raise Absent("a program that receives from the host")

    def tell(self, shape: tuple[int, ...], callback_id: int) -> Program:
        """Pass p0 to an HLO output callback, and return it."""
        raise Absent("a program with an HLO output callback")

    def to_memory(self, shape: tuple[int, ...], source: str, target: str) -> Program:
        """Return p0 in memory of another kind."""
        raise Absent("a program that says its memory kinds")


def _spell(shape: tuple[int, ...], element_type: ElementType = ElementType.F32) -> str:
    return f"{element_type.name.lower()}[{','.join(map(str, shape))}]"


class TinyPrograms(Programs):
    """Programs of the tiny format."""

    def identity(self, shape: tuple[int, ...], element_type: ElementType = ElementType.F32) -> Program:
        program = TinyProgram("identity")
        return self._made(program.result(program.parameter(_spell(shape, element_type))))

    def add(self, shape: tuple[int, ...]) -> Program:
        program = TinyProgram("adder")
        x, y = program.parameter(_spell(shape)), program.parameter(_spell(shape))
        return self._made(program.result(program.let("add", x, y)))

    def double(self, shape: tuple[int, ...], *, donate: bool = False) -> Program:
        program = TinyProgram("double")
        x = program.parameter(_spell(shape))
        return self._made(program.result(program.let("add", x, x), alias=x if donate else None))

    def itself_and_negative(self, shape: tuple[int, ...]) -> Program:
        program = TinyProgram("two")
        x = program.parameter(_spell(shape))
        return self._made(program.result(x).result(program.let("neg", x)))

    def all_reduce(self, shape: tuple[int, ...], num_replicas: int) -> Program:
        program = TinyProgram("sum")
        return self._made(program.result(program.let("all_reduce", program.parameter(_spell(shape)))))

    def replica_id(self) -> Program:
        program = TinyProgram("replica")
        return self._made(program.result(program.let("replica_id")))

    def partition_id(self) -> Program:
        program = TinyProgram("partition")
        return self._made(program.result(program.let("partition_id")))

    def fail(self, code: int, message: str, payload: tuple[str, str] | None = None) -> Program:
        program = TinyProgram("fail")
        value = program.let("fill", "f32[2]", 1)
        if payload is not None:
            program.do("payload", *payload)
        program.do("fail", code, message)
        return self._made(program.result(value))

    def send(self, shape: tuple[int, ...], channel: int, chunks: int = 1) -> Program:
        program = TinyProgram("send")
        x = program.parameter(_spell(shape))
        program.do("send", channel, x, chunks)
        return self._made(program.result(x))

    def receive(self, shape: tuple[int, ...], channel: int) -> Program:
        program = TinyProgram("receive")
        return self._made(program.result(program.let("recv", channel, _spell(shape))))

    def tell(self, shape: tuple[int, ...], callback_id: int) -> Program:
        program = TinyProgram("tell")
        x = program.parameter(_spell(shape))
        program.do("output", callback_id, x)
        return self._made(program.result(x))

    def to_memory(self, shape: tuple[int, ...], source: str, target: str) -> Program:
        program = TinyProgram("move")
        return self._made(program.result(program.parameter(_spell(shape), memory=source), memory=target))

    @staticmethod
    def _made(program: TinyProgram) -> Program:
        return Program(program.code, "tiny")


_MLIR_ELEMENTS = {
    ElementType.PRED: "i1",
    **{ElementType[f"S{bits}"]: f"i{bits}" for bits in (2, 4, 8, 16, 32, 64)},
    **{ElementType[f"U{bits}"]: f"ui{bits}" for bits in (2, 4, 8, 16, 32, 64)},
    **{ElementType[name]: name.lower() for name in ("F16", "F32", "F64", "BF16")},
    ElementType.C64: "complex<f32>",
    ElementType.C128: "complex<f64>",
    **{ElementType[f"F8{name}"]: f"f8{name}" for name in ("E5M2", "E4M3", "E3M4", "E8M0FNU")},
    ElementType.F8E4M3FN: "f8E4M3FN",
    ElementType.F8E4M3B11FNUZ: "f8E4M3B11FNUZ",
    ElementType.F8E5M2FNUZ: "f8E5M2FNUZ",
    ElementType.F8E4M3FNUZ: "f8E4M3FNUZ",
    ElementType.F4E2M1FN: "f4E2M1FN",
}


def _tensor(shape: tuple[int, ...], element_type: ElementType = ElementType.F32) -> str:
    if element_type not in _MLIR_ELEMENTS:
        raise Absent(f"elements of type {element_type.name} in StableHLO")
    return f"tensor<{'x'.join([*map(str, shape), _MLIR_ELEMENTS[element_type]])}>"


class StableHloPrograms(Programs):
    """Programs in StableHLO text."""

    def identity(self, shape: tuple[int, ...], element_type: ElementType = ElementType.F32) -> Program:
        t = _tensor(shape, element_type)
        return self._made("identity", f"(%x: {t}) -> {t}", f"return %x : {t}")

    def add(self, shape: tuple[int, ...]) -> Program:
        t = _tensor(shape)
        return self._made("adder", f"(%x: {t}, %y: {t}) -> {t}", f"%z = stablehlo.add %x, %y : {t}", f"return %z : {t}")

    def double(self, shape: tuple[int, ...], *, donate: bool = False) -> Program:
        t = _tensor(shape)
        alias = " {tf.aliasing_output = 0 : i32}" if donate else ""
        return self._made("double", f"(%x: {t}{alias}) -> {t}", f"%z = stablehlo.add %x, %x : {t}", f"return %z : {t}")

    def itself_and_negative(self, shape: tuple[int, ...]) -> Program:
        t = _tensor(shape)
        return self._made(
            "two", f"(%x: {t}) -> ({t}, {t})", f"%z = stablehlo.negate %x : {t}", f"return %x, %z : {t}, {t}"
        )

    def all_reduce(self, shape: tuple[int, ...], num_replicas: int) -> Program:
        t = _tensor(shape)
        group = ", ".join(map(str, range(num_replicas)))
        return self._made(
            "sum",
            f"(%x: {t}) -> {t}",
            '%z = "stablehlo.all_reduce"(%x) ({',
            "^bb0(%a: tensor<f32>, %b: tensor<f32>):",
            "  %s = stablehlo.add %a, %b : tensor<f32>",
            "  stablehlo.return %s : tensor<f32>",
            f"}}) {{replica_groups = dense<[[{group}]]> : tensor<1x{num_replicas}xi64>}} : ({t}) -> {t}",
            f"return %z : {t}",
        )

    def replica_id(self) -> Program:
        return self._made(
            "replica", "() -> tensor<ui32>", "%z = stablehlo.replica_id : tensor<ui32>", "return %z : tensor<ui32>"
        )

    def partition_id(self) -> Program:
        return self._made(
            "partition", "() -> tensor<ui32>", "%z = stablehlo.partition_id : tensor<ui32>", "return %z : tensor<ui32>"
        )

    def to_memory(self, shape: tuple[int, ...], source: str, target: str) -> Program:
        t = _tensor(shape)
        signature = f'(%x: {t} {{mhlo.memory_kind = "{source}"}}) -> ({t} {{mhlo.memory_kind = "{target}"}})'
        return self._made("move", signature, f"return %x : {t}")

    @staticmethod
    def _made(name: str, signature: str, *lines: str) -> Program:
        body = "\n    ".join(lines)
        return Program(f"module @{name} {{\n  func.func public @main{signature} {{\n    {body}\n  }}\n}}\n".encode())
