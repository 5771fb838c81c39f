"""A plugin made of Python functions, with any extensions, versions and callbacks; and calls of wrapped tables."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Mapping, Sequence

from pjrt.abi import schema
from pjrt.abi.generated.version import API_VERSION
from pjrt.layers import stack

HEAD = 40
SLOT = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
OFFSETS = {each.name: HEAD + 8 * each.index for each in schema.TABLE}
ALL_FUNCTIONS = len(schema.TABLE)
_numbers = itertools.count()


class FakePlugin:
    """A table in memory that lives as long as the process, as tables must.

    Args:
        functions: the functions by name, each from the address of its arguments to that of an error, or None.
        num_functions: the functions that the table has room for; more than this package knows is a newer table.
        extensions: the extensions in order, each its number and its functions: addresses, or Python functions.
    """

    kept: list[object] = []  # noqa: RUF012, everything made here lives as long as the process

    def __init__(
        self,
        functions: Mapping[str, Callable[[int], int | None]] | None = None,
        *,
        num_functions: int = ALL_FUNCTIONS,
        extensions: Sequence[tuple[int, Sequence[int | Callable[[int], int | None]]]] = (),
    ) -> None:
        self.size = HEAD + 8 * num_functions
        self.table = (ctypes.c_uint64 * (5 + num_functions))()
        self.kept.append(self.table)
        self.table[0], self.table[2] = self.size, 24
        self.table[4] = API_VERSION[1] << 32
        self.name = f"fake{next(_numbers)}"
        for name in list(OFFSETS)[:num_functions] if functions is None else ():
            self.set(name, lambda _: None)
        for name, function in (functions or {}).items():
            self.set(name, function)
        self.extensions = [self._extension(*each) for each in extensions]
        for one, following in itertools.pairwise(self.extensions):
            one[2] = ctypes.addressof(following)
        if self.extensions:
            self.table[1] = ctypes.addressof(self.extensions[0])

    @property
    def address(self) -> int:
        return ctypes.addressof(self.table)

    def set(self, name: str, function: Callable[[int], int | None]) -> None:
        self.table[OFFSETS[name] // 8] = self.pointer(function)

    def pointer(self, function: Callable[[int], int | None], kind: type = SLOT) -> int:
        """Return a Python function's address as a C function."""
        entry = kind(function)
        self.kept.append(entry)
        address = ctypes.cast(entry, ctypes.c_void_p).value
        assert address
        return address

    def _extension(
        self, number: int, functions: Sequence[int | Callable[[int], int | None]]
    ) -> ctypes.Array[ctypes.c_uint64]:
        memory = (ctypes.c_uint64 * (3 + len(functions)))()
        self.kept.append(memory)
        memory[0], memory[1] = ctypes.sizeof(memory), number
        for index, function in enumerate(functions):
            memory[3 + index] = function if isinstance(function, int) else self.pointer(function)
        return memory

    def wrap(self, *layers: str) -> int:
        """Return the address of the table with layers, by default with ``pass``."""
        return stack.wrap_table(self.address, self.name, layers or ("pass",), {})


def read(address: int, offset: int = 0) -> int:
    """Return eight bytes as a number."""
    return ctypes.c_uint64.from_address(address + offset).value


def write(address: int, offset: int, value: int) -> None:
    """Write a number in eight bytes."""
    ctypes.c_uint64.from_address(address + offset).value = value


def chain_of(table: int) -> list[int]:
    """Return the addresses of a table's extensions, in order."""
    found, one = [], read(table, 8)
    while one and len(found) < 1000:
        found.append(one)
        one = read(one, 16)
    return found


class Arguments:
    """An argument struct of a function, or of a callback, in memory; and the result of the call with it."""

    result: int | None = None

    def __init__(self, struct: str, **values: int) -> None:
        self.struct = schema.STRUCTS[struct]
        self.memory = ctypes.create_string_buffer(self.struct.size + 8)
        self.address = ctypes.addressof(self.memory)
        if "struct_size" in self.struct.fields:
            write(self.address, 0, self.struct.size)
        for name, value in values.items():
            self[name] = value

    def __getitem__(self, name: str) -> int:
        return read(self.address, self.struct.fields[name].offset)

    def __setitem__(self, name: str, value: int) -> None:
        write(self.address, self.struct.fields[name].offset, value)


def call(table: int, function: str, **values: int) -> Arguments:
    """Call a function of a table, and return its arguments; the result is in ``result``."""
    arguments = Arguments(f"{function}_Args", **values)
    arguments.result = SLOT(read(table, OFFSETS[function]))(arguments.address)
    return arguments
