"""Reproductions: the calls of a failed check as a program in C or Python, with names in place of addresses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pjrt.abi.schema import CALLBACKS, ENUMS, FUNCTIONS, STRUCTS, Field
from pjrt.capi.raw import Struct, code_name
from pjrt.capi.raw.struct import completed
from pjrt.capi.raw.table import extension_offset
from pjrt.conformance.plugin.check import Outcome
from pjrt.plugins.declaration import is_path

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


# A C program, which needs the header of the C API and nothing else.

_C_HEAD = """\
 *
 * cc -I DIRECTORY_OF_XLA reproduction.c -o reproduction -ldl && ./reproduction PLUGIN.so
 * With the header of another place: cc -DPJRT_HEADER='"pjrt_c_api.h"' -I ITS_DIRECTORY reproduction.c -ldl */
#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#ifndef PJRT_HEADER
#define PJRT_HEADER "xla/pjrt/c/pjrt_c_api.h"
#endif
#include PJRT_HEADER
"""

_C_HELPERS = """
static const PJRT_Api *api;

/* Print what a call came to, and destroy its error. */
static void returned(PJRT_Error *error) {
  if (error == NULL) {
    printf("success\\n");
    return;
  }
  PJRT_Error_GetCode_Args code = {.struct_size = PJRT_Error_GetCode_Args_STRUCT_SIZE, .error = error};
  api->PJRT_Error_GetCode(&code);
  PJRT_Error_Message_Args text = {.struct_size = PJRT_Error_Message_Args_STRUCT_SIZE, .error = error};
  api->PJRT_Error_Message(&text);
  printf("error %d: %.*s\\n", (int)code.code, (int)text.message_size, text.message);
  PJRT_Error_Destroy_Args destroy = {.struct_size = PJRT_Error_Destroy_Args_STRUCT_SIZE, .error = error};
  api->PJRT_Error_Destroy(&destroy);
}
"""

_C_EXTENSION = """
/* Return the function at an offset in the struct of an extension. */
static PJRT_Error *(*function_of(int extension, size_t offset))(void *) {
  const PJRT_Extension_Base *at = (const PJRT_Extension_Base *)api->extension_start;
  while (at != NULL && (int)at->type != extension) at = (const PJRT_Extension_Base *)at->next;
  if (at == NULL || offset + sizeof(void *) > at->struct_size) return NULL;
  return *(PJRT_Error *(**)(void *))((const char *)at + offset);
}
"""

_C_BYTES = """
static void print_bytes(const char *name, const unsigned char *data, size_t size) {
  printf("%s:", name);
  for (size_t i = 0; i < size && i < 32; ++i) printf(" %02x", data[i]);
  printf("\\n");
}
"""

_C_MAIN = """
int main(int argc, char **argv) {
  if (argc < 2) return fprintf(stderr, "give the path of the plugin's library\\n"), 2;
  setvbuf(stdout, NULL, _IONBF, 0);
  void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) return fprintf(stderr, "%s\\n", dlerror()), 2;
  const PJRT_Api *(*get_api)(void) = (const PJRT_Api *(*)(void))dlsym(library, "GetPjrtApi");
  if (get_api == NULL) return fprintf(stderr, "%s\\n", dlerror()), 2;
  api = get_api();
"""

_NUMBERS = {
    ("SIGNED", 1): "int8_t", ("SIGNED", 2): "int16_t", ("SIGNED", 4): "int32_t", ("SIGNED", 8): "int64_t",
    ("UNSIGNED", 1): "uint8_t", ("UNSIGNED", 2): "uint16_t", ("UNSIGNED", 4): "uint32_t", ("UNSIGNED", 8): "size_t",
    ("COUNT", 8): "size_t", ("FLOAT", 4): "float", ("FLOAT", 8): "double", ("BOOL", 1): "bool",
}  # fmt: skip
_FORMATS = {"SIGNED": ("lld", "long long"), "UNSIGNED": ("llu", "unsigned long long"), "ENUM": ("d", "int"),
            "COUNT": ("llu", "unsigned long long"), "BOOL": ("d", "int")}  # fmt: skip


_WIDTH = 110
_NOTHING = "(char[64]){0}"
"""Memory for an array without elements: a pointer to it is not null."""


def c_program(reproduction: Reproduction) -> str:
    """Return the program, which takes the path of the plugin's library as its argument."""
    return "\n".join([*_c_lines(reproduction), ""])


def _c_lines(reproduction: Reproduction) -> Iterator[str]:
    remarks = [line for remark in reproduction.remarks for line in remark.splitlines()]
    yield "\n".join(f"{' *' if i else '/*'} {line.replace('*/', '* /')}" for i, line in enumerate(remarks))
    yield _C_HEAD + _C_HELPERS + (_C_EXTENSION if _extensions(reproduction) else "")
    if reproduction.memories:
        yield _C_BYTES.strip("\n") + "\n"
    for memory in reproduction.memories:
        yield _c_memory(memory)
    for kind in _c_callbacks(reproduction):
        yield _c_callback(kind)
    yield _C_MAIN
    for step in reproduction.steps:
        yield from (f"  {line}" for line in _c_step(step, reproduction))
        yield ""
    for memory in reproduction.memories:
        yield f'  print_bytes("{memory.name}", {memory.name}, sizeof {memory.name});'
    yield "  return 0;\n}"


def _c_memory(memory: HostMemory) -> str:
    size = max(memory.size, 1)
    if memory.data is None:
        return f"_Alignas(64) static unsigned char {memory.name}[{size}]; /* its contents were too long to be kept */"
    data = ", ".join(f"0x{byte:02x}" for byte in memory.data) or "0"
    return f"_Alignas(64) static unsigned char {memory.name}[{size}] = {{{data}}};"


def _c_callback(kind: str) -> str:
    """Return a function that stands for a callback of the check: it prints that it is called."""
    returns = CALLBACKS[kind].result != "NOTHING"
    return (
        f"\nstatic {'void *' if returns else 'void '}called_{kind}(void *first) {{\n"
        f'  printf("called back: {kind}, %s\\n", first == NULL ? "null" : "not null");\n'
        f"{'  return NULL;' + chr(10) if returns else ''}}}"
    )


def _c_step(step: Step, reproduction: Reproduction) -> Iterator[str]:
    function = FUNCTIONS[step.function]
    name = f"call{step.number}"
    yield f"/* {_one_line(step.outcome)} */"
    yield f'printf("{step.function}: ");'
    yield from _broken(f"{function.args} {name} = {_c_struct(function.args, step.fields)};")
    if function.extension:
        number = dict(ENUMS["PJRT_Extension_Type"])[function.extension]
        target = f"function_of({number} /* {function.extension} */, {extension_offset(function)})"
    else:
        target = f"api->{step.function}"
    if function.result == "ERROR":
        yield f"returned({target}(&{name}));"
    else:
        yield f"{target}(&{name});"
        yield 'printf("returned\\n");'
    yield from _printed(name, function.args)
    for result in reproduction.results.get(step.number, ()):
        field = STRUCTS[function.args].fields[str(result.place[0])]
        place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in result.place)
        yield f"{field.type} *{result.name} = (void *){name}{place};"


def _broken(line: str) -> list[str]:
    """Return a declaration in lines: where it is long, with a line for each field."""
    if len(line) <= _WIDTH:
        return [line]
    begin, _, rest = line.partition("{.")
    return [begin + "{", *(f"  .{each}" for each in _fields_of(rest))]


def _fields_of(text: str) -> Iterator[str]:
    """Yield the fields of an initialiser without its first brace and point; a literal may have any character."""
    depth, quoted, begin = 0, False, 0
    for i, character in enumerate(text):
        if character == '"' and (not i or text[i - 1] != "\\" or not quoted):
            quoted = not quoted
        elif not quoted:
            depth += {"{": 1, "(": 1, "}": -1, ")": -1}.get(character, 0)
            if not depth and text.startswith(", .", i):
                yield text[begin:i] + ","
                begin = i + 3
    yield text[begin:]


def _printed(name: str, args: str) -> Iterator[str]:
    """Yield the statements that print the numbers and texts that a call returned."""
    for each in STRUCTS[args].fields.values():
        if each.direction == "OUT" and each.kind in _FORMATS:
            letters, kind = _FORMATS[each.kind]
            yield f'printf("  {each.name} = %{letters}\\n", ({kind}){name}.{each.name});'
        elif each.direction == "OUT" and each.kind == "TEXT" and each.count:
            yield f'printf("  {each.name} = %.*s\\n", (int){name}.{each.count}, {name}.{each.name});'


def _c_struct(kind: str, fields: Mapping[str, Any]) -> str:
    spec = STRUCTS[kind]
    parts = []
    for name, value in completed(kind, _with_lengths(kind, fields)).items():
        if value is None:
            continue
        if name == "struct_size" and value == spec.size:
            parts.append(f".struct_size = {kind}_STRUCT_SIZE")
        else:
            parts.append(f".{name} = {_c_field(spec.fields[name], value)}")
    return f"{{{', '.join(parts)}}}"


def _with_lengths(kind: str, fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add the number of elements or bytes of memory of the host, which an array of numpy would know."""
    spec = STRUCTS[kind].fields
    lengths = {}
    for name, value in fields.items():
        field = spec.get(name)
        if isinstance(value, Place) and field is not None and field.count and not value.offset:
            lengths[field.count] = value.memory.size // max(1, field.element_size)
    return {**lengths, **fields}


def _c_field(field: Field, value: Any) -> str:
    if field.kind == "ARRAY" and isinstance(value, list):
        elements = ", ".join(_c_element(field, each) for each in value)
        if "INLINE" in field.marks:
            return f"{{{elements}}}"
        return f"(void *)({_c_type(field)}[]){{{elements}}}" if elements else f"(void *){_NOTHING}"
    if field.kind == "LISTS" and isinstance(value, list):
        lists = [
            f"(void *)({_c_type(field)}[]){{{', '.join(_c_element(field, each) for each in row)}}}"
            if isinstance(row, list) and row
            else _NOTHING
            if isinstance(row, list)
            else _c_pointer(row)
            for row in value
        ]
        return f"(void *)(void *[]){{{', '.join(lists)}}}" if lists else f"(void *){_NOTHING}"
    if field.kind in ("ARRAY", "LISTS"):
        return _c_pointer(value)
    return _c_value(field.kind, field, value)


def _c_element(field: Field, value: Any) -> str:
    if value is None:
        return "{0}" if field.element == "STRUCT_VALUE" else "0"
    return _c_value(field.element, field, value)


def _c_value(kind: str, field: Field, value: Any) -> str:
    if kind == "STRUCT_VALUE":
        return _c_struct(field.type, value if isinstance(value, Mapping) else value.fields)
    if kind == "STRUCT" and isinstance(value, Struct):
        return f"&({field.type}){_c_struct(field.type, value.fields)}"
    if kind == "ENUM" and isinstance(value, str):
        return f"{dict(ENUMS[field.type])[value]} /* {value} */"
    if kind == "BOOL":
        return "true" if value else "false"
    if kind == "FLOAT":
        return repr(float(value))
    if kind in ("STRUCT_SIZE", "COUNT", "SIGNED", "UNSIGNED", "ENUM"):
        return _c_number(int(value))
    return _c_pointer(value)


def _c_pointer(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, Result):
        return value.name
    if isinstance(value, Place):
        return value.memory.name if not value.offset else f"{value.memory.name} + {value.offset}"
    if isinstance(value, Callback):
        return f"(void *)called_{value.kind}"
    if isinstance(value, (str, bytes)):
        return _c_text(value.encode() if isinstance(value, str) else value)
    return f"(void *){_c_number(int(value))}"


def _c_number(value: int) -> str:
    if value == -(1 << 63):
        return "INT64_MIN"
    return f"{value}{'ULL' if value >= 1 << 63 else 'LL' if abs(value) >= 1 << 31 else ''}"


def _c_text(data: bytes) -> str:
    """Return a literal of some bytes; the lines of a text come one below the other."""
    pieces = data.split(b"\n")
    lines = [piece + b"\n" for piece in pieces[:-1]] + ([pieces[-1]] if pieces[-1] or len(pieces) == 1 else [])
    literals = [f'"{"".join(map(_character, line))}"' for line in lines]
    return literals[0] if len(literals) == 1 else "\n      " + "\n      ".join(literals)


def _character(byte: int) -> str:
    if byte == 10:
        return "\\n"
    # Octal: a hexadecimal escape would go on with a digit behind it. A question mark might begin a trigraph.
    return chr(byte) if 32 <= byte < 127 and byte not in b'"\\?' else f"\\{byte:03o}"


def _c_type(field: Field) -> str:
    """Return the C type of the elements of an array or of lists."""
    if field.element == "HANDLE":
        return f"{field.type} *"
    if field.element in ("STRUCT_VALUE", "ENUM"):
        return field.type
    if field.element == "STRUCT":
        return f"{field.type} *"
    return _NUMBERS.get((field.element, field.element_size), "const void *")


def _c_callbacks(reproduction: Reproduction) -> list[str]:
    kinds: dict[str, None] = {}

    def visit(value: Any) -> None:
        if isinstance(value, Callback):
            kinds[value.kind] = None
        elif isinstance(value, Struct):
            visit(list(value.fields.values()))
        elif isinstance(value, list):
            for each in value:
                visit(each)

    for step in reproduction.steps:
        visit(list(step.fields.values()))
    return [kind for kind in kinds if kind in CALLBACKS]


def _extensions(reproduction: Reproduction) -> bool:
    return any(FUNCTIONS[step.function].extension for step in reproduction.steps)


def _one_line(text: str) -> str:
    return " ".join(text.replace("*/", "* /").split())[:200]


# A Python program, which needs ``pjrt.capi.raw`` and numpy only.

_PYTHON_HEAD = '''\
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


def python_program(reproduction: Reproduction, plugin: str) -> str:
    """Return the program, which takes the path of the plugin's library as an argument.

    Args:
        reproduction: the calls.
        plugin: the plugin that it calls where no other is given.
    """
    return "\n".join([*_python_lines(reproduction, plugin), ""])


def _python_lines(reproduction: Reproduction, plugin: str) -> Iterator[str]:
    for remark in reproduction.remarks:
        yield from (f"# {line}" for line in remark.splitlines())
    of_path = is_path(plugin)
    imports = "from pjrt.capi import raw" + ("" if of_path else "\nfrom pjrt.layers.wrapping import table_of")
    yield _PYTHON_HEAD.format(imports=imports)
    yield (_OF_PATH if of_path else _OF_NAME).format(plugin=plugin)
    for memory in reproduction.memories:
        yield from _python_memory(memory)
    for step in reproduction.steps:
        yield ""
        yield f"# {step.outcome.splitlines()[0] if step.outcome else ''}"
        yield _python_call(step, reproduction)
        for result in reproduction.results.get(step.number, ()):
            place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in result.place)
            yield f"{result.name} = call{step.number}{place}"
    for memory in reproduction.memories:
        yield f'print("{memory.name}:", {memory.name}.tobytes()[:32].hex(" "))'


def _python_memory(memory: HostMemory) -> Iterator[str]:
    dtype = memory.dtype if memory.dtype in np.sctypeDict else "uint8"
    if memory.data is None:
        yield f"{memory.name} = np.zeros({memory.size}, np.uint8)  # its contents were too long to be kept"
    else:
        yield f'{memory.name} = np.frombuffer(bytearray.fromhex("{memory.data.hex()}"), np.dtype("{dtype}"))'


def _python_call(step: Step, reproduction: Reproduction) -> str:
    fields = [f"{name}={_python_value(value)}" for name, value in step.fields.items() if value is not None]
    arguments = [f'"{step.function}"', *fields]
    begin = f"call{step.number} = " if step.number in reproduction.results else ""
    line = f"{begin}call({', '.join(arguments)})"
    if len(line) <= _WIDTH and "\n" not in line:
        return line
    lines = "".join(f"    {each},\n" for each in arguments)
    return f"{begin}call(\n{lines})"


def _python_value(value: Any) -> str:
    if isinstance(value, Result):
        return value.name
    if isinstance(value, Place):
        return value.memory.name if not value.offset else f"{value.memory.name}.ctypes.data + {value.offset}"
    if isinstance(value, Callback):
        return "printed"
    if isinstance(value, Struct):
        fields = "".join(f", {name}={_python_value(each)}" for name, each in value.fields.items() if each is not None)
        return f'raw.Struct("{value.kind}"{fields})'
    if isinstance(value, list):
        return f"[{', '.join(map(_python_value, value))}]"
    if isinstance(value, bytes) and value.count(b"\n") > 1 and value.isascii() and b'"""' not in value:
        text = value.decode().replace("\\", "\\\\")
        return f'b"""{text}"""'
    return repr(value)
