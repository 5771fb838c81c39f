"""The tiny format on the host runtime: an interpreter in Python, so that the same programs run on both."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from pjrt.api.compile_options import CompileOptions
from pjrt.api.element_type import ElementType
from pjrt.api.errors import InvalidArgumentError, PjrtError
from pjrt.api.program import Program
from pjrt.api.shape_spec import ShapeSpec
from pjrt.host import Compiled, HostClient, RunContext


def compile_tiny(program: Program, options: CompileOptions) -> Compiled:
    """Compile a tiny program for a `HostClient`."""
    return _TinyProgram(program.code.decode()).compiled()


def host_client(**options: Any) -> HostClient:
    """Make a client of the host runtime that runs tiny programs."""
    return HostClient("tiny-host", compile=compile_tiny, formats=["tiny"], **options)


class _TinyProgram:
    def __init__(self, text: str) -> None:
        self.name = "tiny"
        self.parameters: dict[str, ShapeSpec] = {}
        self.kinds: list[str] = []
        self.statements: list[list[str]] = []
        self.outputs: list[str] = []
        self.output_kinds: list[str] = []
        self.aliases: dict[int, int] = {}
        self.specs: dict[str, ShapeSpec] = {}
        lines = [line.split() for line in text.splitlines()]
        if not lines or lines[0] != ["tiny", "1"]:
            raise InvalidArgumentError(f'a tiny program starts with "tiny 1", found {text[:20]!r}')
        for words in lines[1:]:
            if words:
                self._read(words)

    def compiled(self) -> Compiled:
        return Compiled(
            run=self._run,
            name=self.name,
            takes_context=True,
            parameters=list(self.parameters.values()),
            outputs=[self.specs[name] for name in self.outputs],
            aliases=self.aliases,
            parameter_memory_kinds=self.kinds,
            output_memory_kinds=self.output_kinds,
            cost={"flops": float(sum(self.specs[words[1]].size for words in self.statements if words[0] == "let"))},
        )

    def _read(self, words: list[str]) -> None:
        places = dict(word.split("=") for word in words[2:] if word.startswith(("memory=", "alias=")))
        match words[0]:
            case "name":
                self.name = words[1]
            case "in":
                self.parameters[words[1]] = self.specs[words[1]] = _spec(words[2])
                self.kinds.append(places.get("memory", "device"))
            case "let":
                self.specs[words[1]] = self._result_spec(words[3:])
                self.statements.append(words)
            case "do":
                self.statements.append(words)
            case "out":
                self.outputs.append(words[1])
                self.output_kinds.append(places.get("memory", "device"))
                if "alias" in places:
                    self.aliases[list(self.parameters).index(places["alias"])] = len(self.outputs) - 1
            case other:
                raise InvalidArgumentError(f"unknown statement {other!r}")

    def _result_spec(self, words: list[str]) -> ShapeSpec:
        match words[0]:
            case "fill":
                return _spec(words[1])
            case "recv":
                return _spec(words[2])
            case "replica_id" | "partition_id":
                return ShapeSpec((), ElementType.U32)
            case "identity" | "neg" | "add" | "sub" | "mul" | "all_reduce":
                return self.specs[words[1]]
        raise InvalidArgumentError(f"unknown operation {words[0]!r}")

    def _run(self, context: RunContext, *arguments: Any) -> tuple[Any, ...]:
        values = dict(zip(self.parameters, arguments, strict=True))
        payloads: dict[str, bytes] = {}
        for number, words in enumerate(self.statements):
            if words[0] == "let":
                values[words[1]] = self._value(context, number, words[3:], values)
            else:
                self._effect(context, words[1:], values, payloads)
        results = [values[name] for name in self.outputs]
        for parameter, output in self.aliases.items():
            if arguments[parameter].flags.writeable:  # donated: its memory becomes the result's
                np.copyto(arguments[parameter], results[output])
                results[output] = arguments[parameter]
        return tuple(results)

    def _value(self, context: RunContext, number: int, words: list[str], values: dict[str, Any]) -> Any:
        operands = [values.get(word) for word in words[1:]]
        match words[0]:
            case "identity":
                return operands[0]
            case "neg":
                return -operands[0]
            case "add":
                return operands[0] + operands[1]
            case "sub":
                return operands[0] - operands[1]
            case "mul":
                return operands[0] * operands[1]
            case "all_reduce":
                return sum(context.rendezvous(number, operands[0]))
            case "fill":
                spec = _spec(words[1])
                return np.full(spec.shape, float(words[2]), spec.element_type.dtype)
            case "recv":
                return context.receive(int(words[1]), _spec(words[2]))
            case "replica_id":
                return np.uint32(context.replica_id)
            case _:
                return np.uint32(context.partition_id)

    @staticmethod
    def _effect(context: RunContext, words: list[str], values: dict[str, Any], payloads: dict[str, bytes]) -> None:
        match words[0]:
            case "payload":
                payloads[words[1]] = " ".join(words[2:]).encode()
            case "fail":
                raise PjrtError.of(int(words[1]), " ".join(words[2:]), payloads)
            case "send":
                context.send(int(words[1]), values[words[2]])
            case "output":
                context.hand_out(int(words[1]), [values[words[2]]])
            case "sleep":
                time.sleep(int(words[1]) / 1000)
            case other:
                raise InvalidArgumentError(f"unknown operation {other!r}")


def _spec(text: str) -> ShapeSpec:
    name, _, sizes = text[:-1].partition("[")
    return ShapeSpec(tuple(int(size) for size in sizes.split(",") if size), ElementType[name.upper()])
