"""The calls of a failed check as a C program, which needs the header of the C API and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pjrt.capi.layer.schema import CALLBACKS, ENUMS, FUNCTIONS, STRUCTS, Field
from pjrt.capi.raw import Struct
from pjrt.capi.raw.struct_writer import completed
from pjrt.capi.raw.table import extension_offset
from pjrt.conformance.plugin.reproduction import Callback, HostMemory, Place, Reproduction, Result, Step

_HEAD = """\
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

_HELPERS = """
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

_EXTENSION = """
/* Return the function at an offset in the struct of an extension. */
static PJRT_Error *(*function_of(int extension, size_t offset))(void *) {
  const PJRT_Extension_Base *at = (const PJRT_Extension_Base *)api->extension_start;
  while (at != NULL && (int)at->type != extension) at = (const PJRT_Extension_Base *)at->next;
  if (at == NULL || offset + sizeof(void *) > at->struct_size) return NULL;
  return *(PJRT_Error *(**)(void *))((const char *)at + offset);
}
"""

_BYTES = """
static void print_bytes(const char *name, const unsigned char *data, size_t size) {
  printf("%s:", name);
  for (size_t i = 0; i < size && i < 32; ++i) printf(" %02x", data[i]);
  printf("\\n");
}
"""

_MAIN = """
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
    return "\n".join([*_lines(reproduction), ""])


def _lines(reproduction: Reproduction) -> Iterator[str]:
    remarks = [line for remark in reproduction.remarks for line in remark.splitlines()]
    yield "\n".join(f"{' *' if i else '/*'} {line.replace('*/', '* /')}" for i, line in enumerate(remarks))
    yield _HEAD + _HELPERS + (_EXTENSION if _extensions(reproduction) else "")
    if reproduction.memories:
        yield _BYTES.strip("\n") + "\n"
    for memory in reproduction.memories:
        yield _memory(memory)
    for kind in _callbacks(reproduction):
        yield _callback(kind)
    yield _MAIN
    for step in reproduction.steps:
        yield from (f"  {line}" for line in _step(step, reproduction))
        yield ""
    for memory in reproduction.memories:
        yield f'  print_bytes("{memory.name}", {memory.name}, sizeof {memory.name});'
    yield "  return 0;\n}"


def _memory(memory: HostMemory) -> str:
    size = max(memory.size, 1)
    if memory.data is None:
        return f"_Alignas(64) static unsigned char {memory.name}[{size}]; /* its contents were too long to be kept */"
    data = ", ".join(f"0x{byte:02x}" for byte in memory.data) or "0"
    return f"_Alignas(64) static unsigned char {memory.name}[{size}] = {{{data}}};"


def _callback(kind: str) -> str:
    """Return a function that stands for a callback of the check: it prints that it is called."""
    returns = CALLBACKS[kind].result != "NOTHING"
    return (
        f"\nstatic {'void *' if returns else 'void '}called_{kind}(void *first) {{\n"
        f'  printf("called back: {kind}, %s\\n", first == NULL ? "null" : "not null");\n'
        f"{'  return NULL;' + chr(10) if returns else ''}}}"
    )


def _step(step: Step, reproduction: Reproduction) -> Iterator[str]:
    function = FUNCTIONS[step.function]
    name = f"call{step.number}"
    yield f"/* {_one_line(step.outcome)} */"
    yield f'printf("{step.function}: ");'
    yield from _broken(f"{function.args} {name} = {_struct(function.args, step.fields)};")
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
    for field in STRUCTS[args].fields.values():
        if field.direction == "OUT" and field.kind in _FORMATS:
            letters, kind = _FORMATS[field.kind]
            yield f'printf("  {field.name} = %{letters}\\n", ({kind}){name}.{field.name});'
        elif field.direction == "OUT" and field.kind == "TEXT" and field.count:
            yield f'printf("  {field.name} = %.*s\\n", (int){name}.{field.count}, {name}.{field.name});'


def _struct(kind: str, fields: Mapping[str, Any]) -> str:
    spec = STRUCTS[kind]
    parts = []
    for name, value in completed(kind, _with_lengths(kind, fields)).items():
        if value is None:
            continue
        if name == "struct_size" and value == spec.size:
            parts.append(f".struct_size = {kind}_STRUCT_SIZE")
        else:
            parts.append(f".{name} = {_field(spec.fields[name], value)}")
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


def _field(field: Field, value: Any) -> str:
    if field.kind == "ARRAY" and isinstance(value, list):
        elements = ", ".join(_element(field, each) for each in value)
        if "INLINE" in field.marks:
            return f"{{{elements}}}"
        return f"(void *)({_type(field)}[]){{{elements}}}" if elements else f"(void *){_NOTHING}"
    if field.kind == "LISTS" and isinstance(value, list):
        lists = [
            f"(void *)({_type(field)}[]){{{', '.join(_element(field, each) for each in row)}}}"
            if isinstance(row, list) and row
            else _NOTHING
            if isinstance(row, list)
            else _pointer(row)
            for row in value
        ]
        return f"(void *)(void *[]){{{', '.join(lists)}}}" if lists else f"(void *){_NOTHING}"
    if field.kind in ("ARRAY", "LISTS"):
        return _pointer(value)
    return _value(field.kind, field, value)


def _element(field: Field, value: Any) -> str:
    if value is None:
        return "{0}" if field.element == "STRUCT_VALUE" else "0"
    return _value(field.element, field, value)


def _value(kind: str, field: Field, value: Any) -> str:
    if kind == "STRUCT_VALUE":
        return _struct(field.type, value if isinstance(value, Mapping) else value.fields)
    if kind == "STRUCT" and isinstance(value, Struct):
        return f"&({field.type}){_struct(field.type, value.fields)}"
    if kind == "ENUM" and isinstance(value, str):
        return f"{dict(ENUMS[field.type])[value]} /* {value} */"
    if kind == "BOOL":
        return "true" if value else "false"
    if kind == "FLOAT":
        return repr(float(value))
    if kind in ("STRUCT_SIZE", "COUNT", "SIGNED", "UNSIGNED", "ENUM"):
        return _number(int(value))
    return _pointer(value)


def _pointer(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, Result):
        return value.name
    if isinstance(value, Place):
        return value.memory.name if not value.offset else f"{value.memory.name} + {value.offset}"
    if isinstance(value, Callback):
        return f"(void *)called_{value.kind}"
    if isinstance(value, (str, bytes)):
        return _text(value.encode() if isinstance(value, str) else value)
    return f"(void *){_number(int(value))}"


def _number(value: int) -> str:
    if value == -(1 << 63):
        return "INT64_MIN"
    return f"{value}{'ULL' if value >= 1 << 63 else 'LL' if abs(value) >= 1 << 31 else ''}"


def _text(data: bytes) -> str:
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


def _type(field: Field) -> str:
    """Return the C type of the elements of an array or of lists."""
    if field.element == "HANDLE":
        return f"{field.type} *"
    if field.element in ("STRUCT_VALUE", "ENUM"):
        return field.type
    if field.element == "STRUCT":
        return f"{field.type} *"
    return _NUMBERS.get((field.element, field.element_size), "const void *")


def _callbacks(reproduction: Reproduction) -> list[str]:
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
