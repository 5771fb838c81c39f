"""The calls of a failed check as a Python program, which needs ``pjrt.capi.raw`` and numpy only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from pjrt.capi.raw import Struct
from pjrt.conformance.plugin.reproduction import Callback, HostMemory, Place, Reproduction, Result, Step
from pjrt.plugins.declaration import is_path

_HEAD = '''\
import sys

import numpy as np

{imports}


def call(function, **fields):
    """Call a function of the plugin, and print what comes back."""
    print(function, end=": ", flush=True)
    result = plugin.call(function, **fields)
    print(result.error or result.fields, flush=True)
    return result


def printed(*arguments):
    """Stand for a callback of the check."""
    print("called back with", arguments, flush=True)

'''
_OF_PATH = "plugin = raw.load(sys.argv[1] if len(sys.argv) > 1 else {plugin!r})"
_OF_NAME = """\
address, _, _, owner = table_of(sys.argv[1] if len(sys.argv) > 1 else {plugin!r})
plugin = raw.Plugin(address, owner)"""
_WIDTH = 110


def python_program(reproduction: Reproduction, plugin: str) -> str:
    """Return the program, which takes the path of the plugin's library as an argument.

    Args:
        reproduction: the calls.
        plugin: the plugin that it calls where no other is given.
    """
    return "\n".join([*_lines(reproduction, plugin), ""])


def _lines(reproduction: Reproduction, plugin: str) -> Iterator[str]:
    for remark in reproduction.remarks:
        yield from (f"# {line}" for line in remark.splitlines())
    of_path = is_path(plugin)
    imports = "from pjrt.capi import raw" + ("" if of_path else "\nfrom pjrt.layers.wrapping import table_of")
    yield _HEAD.format(imports=imports)
    yield (_OF_PATH if of_path else _OF_NAME).format(plugin=plugin)
    for memory in reproduction.memories:
        yield from _memory(memory)
    for step in reproduction.steps:
        yield ""
        yield f"# {step.outcome.splitlines()[0] if step.outcome else ''}"
        yield _call(step, reproduction)
        for result in reproduction.results.get(step.number, ()):
            place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in result.place)
            yield f"{result.name} = call{step.number}{place}"
    for memory in reproduction.memories:
        yield f'print("{memory.name}:", {memory.name}.tobytes()[:32].hex(" "))'


def _memory(memory: HostMemory) -> Iterator[str]:
    dtype = memory.dtype if memory.dtype in np.sctypeDict else "uint8"
    if memory.data is None:
        yield f"{memory.name} = np.zeros({memory.size}, np.uint8)  # its contents were too long to be kept"
    else:
        yield f'{memory.name} = np.frombuffer(bytearray.fromhex("{memory.data.hex()}"), np.dtype("{dtype}"))'


def _call(step: Step, reproduction: Reproduction) -> str:
    fields = [f"{name}={_spelled(value)}" for name, value in step.fields.items() if value is not None]
    arguments = [f'"{step.function}"', *fields]
    begin = f"call{step.number} = " if step.number in reproduction.results else ""
    line = f"{begin}call({', '.join(arguments)})"
    if len(line) <= _WIDTH and "\n" not in line:
        return line
    lines = "".join(f"    {each},\n" for each in arguments)
    return f"{begin}call(\n{lines})"


def _spelled(value: Any) -> str:
    if isinstance(value, Result):
        return value.name
    if isinstance(value, Place):
        return value.memory.name if not value.offset else f"{value.memory.name}.ctypes.data + {value.offset}"
    if isinstance(value, Callback):
        return "printed"
    if isinstance(value, Struct):
        fields = "".join(f", {name}={_spelled(each)}" for name, each in value.fields.items() if each is not None)
        return f'raw.Struct("{value.kind}"{fields})'
    if isinstance(value, list):
        return f"[{', '.join(map(_spelled, value))}]"
    if isinstance(value, bytes) and value.count(b"\n") > 1 and value.isascii() and b'"""' not in value:
        text = value.decode().replace("\\", "\\\\")
        return f'b"""{text}"""'
    return repr(value)
