"""Reproductions: the calls of a failed check as a program, with names in place of the addresses of its process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pjrt.capi.layer.schema import FUNCTIONS, STRUCTS, Field
from pjrt.capi.raw import Struct, code_name
from pjrt.conformance.plugin.outcome import Outcome

_MAX_STEPS = 300
"""The calls that a reproduction has at most: the first ones."""

_WITH_ADDRESSES = frozenset({"HANDLE", "POINTER", "BYTES", "TEXT", "USER_DATA"})


@dataclass(frozen=True, slots=True)
class Result:
    """A handle that an earlier call returned: its name, the call, and the place among its results."""

    name: str
    step: int
    place: tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Memory of the host that calls are given.

    Attributes:
        name: its name.
        dtype: the type of its elements, as numpy names it.
        address: where it began in the process of the check.
        size: its bytes.
        data: the bytes; ``None`` if they were too many to be kept.
    """

    name: str
    dtype: str
    address: int
    size: int
    data: bytes | None


@dataclass(frozen=True, slots=True)
class Place:
    """A place in memory of the host: where an array's first element is."""

    memory: HostMemory
    offset: int


@dataclass(frozen=True, slots=True)
class Callback:
    """A function of the check; a program has one that prints."""

    kind: str


@dataclass(frozen=True, slots=True)
class Step:
    """One call.

    Attributes:
        number: its number, from 1.
        function: the function.
        fields: the values of its arguments, with ``Result``, ``Place`` and ``Callback`` in them.
        outcome: what came back in the check, as text.
    """

    number: int
    function: str
    fields: Mapping[str, Any]
    outcome: str


@dataclass(slots=True)
class Reproduction:
    """The calls of a check that failed.

    Attributes:
        outcome: the outcome of the check.
        steps: the calls.
        memories: the memory of the host that they use.
        results: the handles that calls use, by the numbers of the calls that return them.
        left_out: the number of further calls that the check made.
        threads: the number of threads that made the calls.
    """

    outcome: Outcome
    steps: list[Step] = field(default_factory=list)
    memories: list[HostMemory] = field(default_factory=list)
    results: dict[int, list[Result]] = field(default_factory=dict)
    left_out: int = 0
    threads: int = 1
    _addresses: dict[int, Result] = field(default_factory=dict)
    _counts: dict[str, int] = field(default_factory=dict)

    @staticmethod
    def of(outcome: Outcome) -> Reproduction:
        """Return the reproduction of a failed check, which still has its transcript."""
        reproduction = Reproduction(outcome)
        reproduction.threads = len({call["thread"] for call in outcome.transcript}) or 1
        reproduction.left_out = max(0, len(outcome.transcript) - _MAX_STEPS)
        for call in outcome.transcript[:_MAX_STEPS]:
            reproduction._add(call)
        return reproduction

    @property
    def remarks(self) -> Iterator[str]:
        """The lines at the head of a program: which check it is of, the rule, and what came of it."""
        yield f"The check {self.outcome.check} of pjrt conform, as a program."
        yield f"Rule: {self.outcome.rule}"
        yield f"Outcome: {self.outcome.verdict}, {self.outcome.message}"
        if self.threads > 1:
            yield f"The check made these calls in {self.threads} threads; here they come one after the other."
        if self.left_out:
            yield f"The check made {self.left_out} more calls, which are not here."

    def _add(self, call: Mapping[str, Any]) -> None:
        number = len(self.steps) + 1
        spec = STRUCTS[FUNCTIONS[call["function"]].args]
        fields = {name: self._value(value, spec.fields.get(name)) for name, value in call["arguments"].items()}
        self.steps.append(Step(number, call["function"], fields, _came_back(call)))
        for name, value in call["results"].items():
            if name in spec.fields:
                self._learn(number, value, spec.fields[name], (name,))

    def _learn(self, step: int, value: Any, of: Field, place: tuple[str | int, ...]) -> None:
        """Remember the handles among the results of a call."""
        if isinstance(value, list):
            for i, each in enumerate(value):
                self._learn(step, each, of, (*place, i))
        elif isinstance(value, int) and not isinstance(value, bool) and "HANDLE" in (of.kind, of.element):
            word = of.type.rpartition("_")[2].lower() if of.type else of.name
            self._addresses[value] = Result(word, step, place)

    def _value(self, value: Any, of: Field | None) -> Any:
        if isinstance(value, list):
            return [self._value(each, of) for each in value]
        if isinstance(value, dict):
            return self._compound(value, of)
        kinds = (of.kind, of.element) if of is not None else ()
        if isinstance(value, int) and not isinstance(value, bool) and value and _WITH_ADDRESSES.intersection(kinds):
            return self._address(value)
        return value

    def _compound(self, value: dict[str, Any], of: Field | None) -> Any:
        if "struct" in value:
            kind = value["struct"] or (of.type if of is not None else "")
            spec = STRUCTS.get(kind)
            inner = spec.fields if spec is not None else {}
            return Struct(kind, {name: self._value(each, inner.get(name)) for name, each in value["fields"].items()})
        if "array" in value:
            begin = value["address"] - value["offset"]
            return Place(self._memory(begin, value["size"], value["array"], value["data"]), value["offset"])
        if "function" in value:
            return Callback(of.type if of is not None else "")
        return bytes(value.get("bytes", 0))

    def _address(self, value: int) -> Any:
        """Return what an address stands for: a handle, a place in memory of the host, or the number itself."""
        if value in self._addresses:
            return self._use(self._addresses[value])
        for memory in reversed(self.memories):
            if memory.address <= value < memory.address + memory.size:
                return Place(memory, value - memory.address)
        return value

    def _use(self, result: Result) -> Result:
        """Give a handle that a call uses a name of its own."""
        listed = self.results.setdefault(result.step, [])
        for each in listed:
            if each.place == result.place:
                return each
        count = self._counts[result.name] = self._counts.get(result.name, 0) + 1
        listed.append(Result(f"{result.name}{count}", result.step, result.place))
        return listed[-1]

    def _memory(self, address: int, size: int, dtype: str, data: bytes | None) -> HostMemory:
        for memory in self.memories:
            if (memory.address, memory.size, memory.dtype) == (address, size, dtype):
                return memory
        self.memories.append(HostMemory(f"data{len(self.memories) + 1}", dtype, address, size, data))
        return self.memories[-1]


def _came_back(call: Mapping[str, Any]) -> str:
    if not call["returned"]:
        return "it did not return"
    if call["error"] is not None:
        code, message = call["error"]
        return f"{code_name(code)}: {message}"
    return "success"
