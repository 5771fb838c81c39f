"""Build programs of the tiny format. README.md describes the format."""

from __future__ import annotations


class TinyProgram:
    """A program under construction; every method that makes a value returns its name, and `text` is the program."""

    def __init__(self, name: str = "tiny") -> None:
        """Begin a program of this name, which becomes the executable's."""
        self._lines = ["tiny 1", f"name {name}"]
        self._values = 0

    @property
    def text(self) -> str:
        """The program as it is given to the plugin."""
        return "\n".join(self._lines) + "\n"

    @property
    def code(self) -> bytes:
        """The same as bytes."""
        return self.text.encode()

    def parameter(self, shape: str, *, memory: str | None = None, sharding: bytes | None = None) -> str:
        """Add a parameter of a shape like "f32[2,3]"."""
        name = self._next("p")
        self._lines.append(f"in {name} {shape}{_place(memory, None, sharding)}")
        return name

    def let(self, operation: str, *words: object) -> str:
        """Add a statement that makes a value: "add", "sub", "mul", "neg", "identity", "fill", "all_reduce", …"""
        name = self._next("v")
        self._lines.append(" ".join(["let", name, "=", operation, *map(str, words)]))
        return name

    def do(self, operation: str, *words: object) -> None:
        """Add a statement for its effect: "sleep", "fail", "payload", "send", "output"."""
        self._lines.append(" ".join(["do", operation, *map(str, words)]))

    def call(self, target: str, shape: str, *operands: str, **attributes: object) -> str:
        """Add the call of an FFI handler that makes a value of the shape."""
        return self.let("call", target, shape, *operands, *(f"{key}={value}" for key, value in attributes.items()))

    def result(
        self, value: str, *, memory: str | None = None, alias: str | None = None, sharding: bytes | None = None
    ) -> TinyProgram:
        """Add an output; with an alias the parameter of that name is donated to it. Returns the program."""
        self._lines.append(f"out {value}{_place(memory, alias, sharding)}")
        return self

    def _next(self, letter: str) -> str:
        self._values += 1
        return f"{letter}{self._values - 1}"


def _place(memory: str | None, alias: str | None, sharding: bytes | None) -> str:
    words = {"memory": memory, "alias": alias, "sharding": None if sharding is None else sharding.hex()}
    return "".join(f" {key}={value}" for key, value in words.items() if value is not None)
