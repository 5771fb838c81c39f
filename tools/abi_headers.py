"""What the ABI headers state, and its schema: for each struct its fields with kind, place and marks.

The kinds follow from C types and names by rule. What the rules cannot know is a mark in the comment behind the field.
``abi/pjrt_abi.h`` lists the marks. This reads no more C than the headers use: one field a line, no nested parentheses
except in function pointers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "pjrt"
CAPI = PACKAGE / "capi"
INCLUDE = PACKAGE / "abi"
GENERATED = INCLUDE / "generated"
ORDER = ("base", "event", "layout", "device", "client", "buffer", "transfer", "executable", "topology", "table")

_COMMENT = re.compile(r"[ \t]*/\*.*?\*/", re.S)
_LATER = re.compile(r"(\w+);  /\* [^*/]*\blater\b[^*/]*\*/")
ITEM = re.compile(
    r"typedef enum \{(?P<enum>[^}]*)\} (?P<enum_name>\w+);"
    r"|(?P<tag>typedef )?struct (?P<struct>\w+) \{(?P<body>(?:[^{}]|\{[^{}]*\})*)\}(?: \w+)?;"
    r"|typedef (?P<callback>[^;{}]*\(\*\w+\)\([^;{}]*\));"
    r"|typedef struct (?P<opaque>\w+) (?P=opaque);"
    r"|typedef (?P<old>\w+) (?P<new>\w+);",
    re.S,
)
_EXTENSION = re.compile(r"PJRT_Extension_Type_(\w+) = \d+,  /\* (.*) \*/")
_MEMBER = re.compile(r"\(\*(\w+)\)\( ?(\w+)_Args \*args\)")
_FUNCTION = re.compile(r"\(\*(\w+)\)\(\1_Args \*args\);(?:  /\* (\d+) \*/)?")
FUNCTION_POINTER = re.compile(r"(?P<result>.*?)\(\*(?P<name>\w+)\)\((?P<parameters>.*)\)$")
_SIGNED = {"int", "int32_t", "int64_t", "intptr_t"}
_UNSIGNED = {"size_t", "uint8_t", "uint32_t", "uint64_t", "uintptr_t"}
_SIZES = {"size_t": 8, "int": 4, "int32_t": 4, "uint32_t": 4, "int64_t": 8, "uint64_t": 8, "float": 4, "bool": 1}
_SIZES |= {"intptr_t": 8, "uintptr_t": 8, "char": 1, "uint8_t": 1, "void": 1}
_MARKED = re.compile(r";[ \t]*/\* (.*?) \*/")
_MARKED_PARAMETER = re.compile(r"[ \t]*/\* ([a-z ]+) \*/(?=[,)])")
_BINARY = re.compile(r"serialized|bytes|^code$|compile_options|^value$|config|environments|^data$|metadata|^options$")

MARKS = {
    "null": "NULLABLE",
    "new": "CREATES",
    "borrowed": "BORROWS",
    "destroys": "DESTROYS",
    "deletes": "DELETES",
    "consumes": "CONSUMES",
    "donates": "DONATES",
    "fills": "FILLS",
    "keeps": "KEEPS",
    "once": "ONCE",
    "later": "LATER",
}
"""The marks that are bits of ``pjrt_mark``, by the word in the headers."""

_OTHER_MARKS = {"out", "in out", "one", "address", "text", "bytes", "values"}

_NAMED_MARKS = {"count", "inner", "owner", "data", "lives"}


def headers() -> list[Path]:
    """Return the headers, each after those that it includes."""
    folder = INCLUDE / "pjrt_abi"
    named = [folder / f"{name}.h" for name in ORDER]
    return [*named[:-1], *sorted((folder / "extensions").glob("*.h")), named[-1]]


def items() -> list[re.Match[str]]:
    """Return the declarations of all headers, in order."""
    return [item for header in headers() for item in ITEM.finditer(_COMMENT.sub("", header.read_text()))]


def table() -> list[tuple[str, int | None]]:
    """Return the functions of ``PJRT_Api`` in order, each with the minor version that added it (None: the first)."""
    text = (INCLUDE / "pjrt_abi" / "table.h").read_text()
    return [(name, int(since) if since else None) for name, since in _FUNCTION.findall(text)]


def extensions() -> list[tuple[str, str]]:
    """Return the kinds of extensions in the order of their numbers: the name, and a description."""
    return [(name, about) for name, about in _EXTENSION.findall(_base_header())]


def extension_functions() -> dict[str, list[tuple[str, str]]]:
    """Return for each extension the functions of its struct, in order: the field, and the function's name."""
    found = {}
    for item in items():
        if match := re.fullmatch(r"PJRT_(\w+)_Extension", item["struct"] or ""):
            members = [_MEMBER.search(field) for field in fields_of(item["body"])[1:]]
            found[match[1]] = [(member[1], member[2]) for member in members if member]
    return {kind: members for kind, members in found.items() if members}


def sized_structs() -> list[tuple[str, str, str]]:
    """Return the structs that begin with their size, and those of extensions.

    Each comes with its last field, and with that of its first version, which ends before what later versions added.
    """
    later = _later_fields()
    structs = [(item["struct"], fields_of(item["body"])) for item in items() if item["struct"]]
    sized = []
    for struct, fields in structs:
        if fields[0] in ("size_t struct_size", "PJRT_Extension_Base base"):
            first = fields
            if struct in later:
                first = fields[: next(i for i, field in enumerate(fields) if re.search(rf"\b{later[struct]}\b", field))]
            sized.append((struct, name_of(fields[-1]), name_of(first[-1])))
    return sized


def _later_fields() -> dict[str, str]:
    """Return the first field that a later version added, of each struct that has one."""
    later = {}
    for header in headers():
        for item in ITEM.finditer(header.read_text()):
            if item["struct"] and (match := _LATER.search(item["body"])):
                later[item["struct"]] = match[1]
    return later


def version() -> tuple[int, int]:
    """Return the major and minor version of the C API that the headers state."""
    major, minor = re.findall(r"^#define PJRT_API_M(?:AJ|IN)OR (\d+)$", _base_header(), re.M)
    return int(major), int(minor)


def _base_header() -> str:
    return (INCLUDE / "pjrt_abi" / "base.h").read_text()


def fields_of(body: str) -> list[str]:
    return [field for field in (" ".join(f.split()) for f in body.split(";")) if field]


def name_of(field: str) -> str:
    """Return the name of a field, also of one that is a function pointer."""
    match = re.search(r"\(\*(\w+)\)", field) or re.search(r"(\w+)$", field)
    assert match, field
    return match[1]


class HeaderError(Exception):
    """A header has a field that neither the rules nor its marks explain."""


@dataclass
class Field:
    """A field of a struct, or a parameter of a callback."""

    name: str
    ctype: str
    marks: list[str] = field(default_factory=list)
    offset: int = 0
    size: int = 0
    kind: str = ""
    direction: str = "IN"
    element: str = ""
    element_size: int = 0
    type: str = ""
    count: str = ""
    inner_count: str = ""
    owner: str = ""
    variant: int = -1
    bits: list[str] = field(default_factory=list)

    def named(self, word: str) -> str:
        """Return the name behind a mark such as ``count``; empty if the field has no such mark."""
        return next((mark.split()[1] for mark in self.marks if mark.split()[0] == word), "")


@dataclass
class Struct:
    """A struct of the headers, or the parameters of a callback."""

    name: str
    fields: list[Field]
    size: int = 0
    alignment: int = 1
    parameters: bool = False

    def field(self, name: str) -> Field:
        """Return the field of a name."""
        return next(each for each in self.fields if each.name == name)

    def index(self, name: str) -> int:
        """Return the index of the field of a name; -1 for an empty name."""
        return next(i for i, each in enumerate(self.fields) if each.name == name) if name else -1


@dataclass
class Function:
    """A function of the table or of an extension, or a callback."""

    name: str
    args: str
    slot: str = ""
    extension: str = ""
    minor: int = 0
    result: str = "ERROR"
    parameters: tuple[tuple[str, str], ...] = ()
    c_result: str = ""
    is_typedef: bool = False


def split_parameters(text: str) -> list[str]:
    """Split parameters at commas that are not inside of parentheses."""
    out, depth, start = [], 0, 0
    for i, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if char == "," and not depth:
            out.append(text[start:i])
            start = i + 1
    out.append(text[start:])
    return [each.strip() for each in out if each.strip() not in ("", "void")]


def read_parameter(text: str, index: int) -> tuple[str, str, list[str]]:
    """Return the type, the name and the marks of a parameter."""
    text, *marks = text.rstrip("\N{SECTION SIGN}").split("\N{SECTION SIGN}")
    match = re.fullmatch(r"(.*?[ *])(\w+)", text)
    if match is None or text.endswith("*"):
        return text, f"argument{index}", marks
    return match[1].strip(), match[2], marks


def read_fields(body: str) -> list[Field]:
    """Return the fields in the body of a struct; members of a union know their place in it."""
    fields: list[Field] = []
    variant = -1
    for raw in body.split(";"):
        marks: list[str] = []
        chunk = raw
        if match := re.match(r"\N{SECTION SIGN}(.*?)\N{SECTION SIGN}", chunk):
            marks = [mark.strip() for mark in match[1].split(",")]
            chunk = chunk[match.end() :]
        if fields and marks:
            fields[-1].marks = marks
        chunk = " ".join(chunk.split())
        if "union {" in chunk:
            variant, chunk = 0, chunk.replace("union {", "").strip()
        if chunk.startswith("}"):
            variant, chunk = -1, chunk[1:].strip()
        if not chunk:
            continue
        fields.append(_read_field(chunk, variant))
        variant += variant >= 0
    return fields


def _read_field(text: str, variant: int) -> Field:
    if match := FUNCTION_POINTER.match(text):
        return Field(match["name"], text, variant=variant)
    if match := re.fullmatch(r"(.*?)(\w+)(\[\d+\])", text):
        return Field(match[2], f"{match[1].strip()}{match[3]}", variant=variant)
    match = re.fullmatch(r"(.*?[ *])(\w+)", text)
    if match is None:
        raise HeaderError(f"not a field: {text}")
    return Field(match[2], match[1].strip(), variant=variant)


def scalar_kind(base: str) -> str:
    """Return the kind of a number of a C type."""
    if base in ("bool",):
        return "BOOL"
    if base == "float":
        return "FLOAT"
    if base in _SIGNED:
        return "SIGNED"
    if base in _UNSIGNED:
        return "UNSIGNED"
    raise HeaderError(f"the type {base} is unknown")


class Schema:
    """Everything that the headers state."""

    def __init__(self) -> None:
        self.enums: dict[str, list[tuple[str, int]]] = {}
        self.handles: list[str] = []
        self.structs: dict[str, Struct] = {}
        self.functions: list[Function] = []
        self.callbacks: dict[str, Function] = {}
        self.aliases: dict[str, str] = {}
        self._read()
        problems = []
        for struct in list(self.structs.values()):
            try:
                self._finish(struct)
            except HeaderError as error:
                problems.append(str(error))
        if problems:
            raise HeaderError("\n".join(problems))
        self._lifetimes()

    def _read(self) -> None:
        for header in headers():
            text = _MARKED.sub(";\N{SECTION SIGN}\\1\N{SECTION SIGN}", header.read_text())
            text = _COMMENT.sub("", _MARKED_PARAMETER.sub("\N{SECTION SIGN}\\1\N{SECTION SIGN}", text))
            for item in ITEM.finditer(text):
                self._item(item)
        self.handles = [
            name for name in self.handles if name not in self.structs or name in ("PJRT_Error", "PJRT_Memory")
        ]
        for name in ("PJRT_Error", "PJRT_Memory"):
            del self.structs[name]
        self._functions()

    def _item(self, item: re.Match[str]) -> None:
        if name := item["enum_name"]:
            self.enums[name] = [(n, int(v)) for n, v in re.findall(r"(\w+) = (\d+)", item["enum"])]
        elif name := item["struct"]:
            self.structs[name] = Struct(name, read_fields(item["body"]))
        elif item["callback"]:
            self._callback(item["callback"], is_typedef=True)
        elif name := item["opaque"]:
            self.handles.append(name)
        elif item["old"]:
            self.aliases[item["new"]] = item["old"]

    def _callback(self, text: str, name: str = "", is_typedef: bool = False) -> str:
        match = FUNCTION_POINTER.match(" ".join(text.split()).replace(", ", ","))
        if not match:
            raise HeaderError(f"not a function pointer: {text}")
        name = name or match["name"]
        marked = [read_parameter(each, i) for i, each in enumerate(split_parameters(match["parameters"]))]
        parameters = tuple((kind, name) for kind, name, _ in marked)
        c_result = match["result"].strip()
        result = {"void": "NOTHING", "PJRT_Error *": "ERROR"}.get(c_result, "OTHER")
        args = f"{name}_Parameters"
        if len(parameters) == 1 and parameters[0][0].endswith("_Args *"):
            args = parameters[0][0].removesuffix(" *")
        else:
            fields = [Field(n, kind, marks) for kind, n, marks in marked]
            self.structs[args] = Struct(args, fields, parameters=True)
        self.callbacks[name] = Function(
            name, args, result=result, parameters=parameters, c_result=c_result, is_typedef=is_typedef
        )
        return name

    def _functions(self) -> None:
        slots = {each.name: each for each in self.structs["PJRT_Api"].fields}
        for name, minor in table():
            self.functions.append(self._function(name, slots[name], "", minor or 0))
        numbers = dict(self.enums["PJRT_Extension_Type"])
        for kind in sorted(extension_functions(), key=lambda k: numbers[f"PJRT_Extension_Type_{k}"]):
            for each in self.structs[f"PJRT_{kind}_Extension"].fields:
                if "(*" in each.ctype:
                    self.functions.append(self._function("", each, kind, 0))
        for each in self.structs["PLUGIN_Profiler_Api"].fields:
            if "(*" in each.ctype:
                self.functions.append(self._function(f"PLUGIN_Profiler_{_camel(each.name)}", each, "Profiler", 0))
        for name in [n for n in self.structs if n.endswith("_Extension") or n in ("PJRT_Api", "PLUGIN_Profiler_Api")]:
            del self.structs[name]
        for name in (
            "PJRT_Extension_Base",
            "PJRT_Error_FunctionTable",
            "PJRT_Memory_FunctionTable",
            "PJRT_Api_Version",
        ):
            del self.structs[name]

    def _function(self, name: str, slot: Field, extension: str, minor: int) -> Function:
        match = FUNCTION_POINTER.match(slot.ctype)
        if not match:
            raise HeaderError(f"the slot {slot.name} is no function")
        args = match["parameters"].removesuffix("args").strip().removesuffix("*").strip()
        name = name or args.removesuffix("_Args")
        result = match["result"].strip()
        kinds = {"void": "NOTHING", "PJRT_Error *": "ERROR", "PLUGIN_Profiler_Error *": "PROFILER_ERROR"}
        return Function(name, self.aliases.get(args, args), slot.name, extension, minor, kinds[result])

    def _finish(self, struct: Struct) -> None:
        self._classify(struct)
        self._lay_out(struct)

    @cache  # noqa: B019, one schema a process
    def layout(self, name: str) -> tuple[int, int]:
        """Return the size and the alignment of a struct."""
        struct = self.structs[name]
        self._lay_out(struct)
        return -(-struct.size // struct.alignment) * struct.alignment, struct.alignment

    def _lay_out(self, struct: Struct) -> None:
        end, struct.alignment, union_start = 0, 1, -1
        union_end = 0
        for each in struct.fields:
            size, alignment = self._size(each.ctype)
            struct.alignment = max(struct.alignment, alignment)
            each.size = size
            if each.variant >= 0:
                if union_start < 0:
                    widest = max(self._size(f.ctype)[1] for f in struct.fields if f.variant >= 0)
                    union_start = -(-end // widest) * widest
                each.offset = union_start
                union_end = max(union_end, union_start + -(-size // 8) * 8)
                end = union_end
                continue
            each.offset = -(-end // alignment) * alignment
            end = each.offset + size
        struct.size = end

    def _size(self, ctype: str) -> tuple[int, int]:
        if match := re.fullmatch(r"(\w+)\[(\d+)\]", ctype):
            size, alignment = self._size(match[1])
            return size * int(match[2]), alignment
        if "*" in ctype or ctype in self.callbacks:
            return 8, 8
        if ctype in self.enums:
            return 4, 4
        if ctype in _SIZES:
            return _SIZES[ctype], _SIZES[ctype]
        return self.layout(ctype)

    def _classify(self, struct: Struct) -> None:
        problems = []
        for each in struct.fields:
            for mark in each.marks:
                if mark.split()[0] not in _NAMED_MARKS and mark not in MARKS and mark not in _OTHER_MARKS:
                    raise HeaderError(f"{struct.name}.{each.name}: the mark {mark!r} is unknown")
            each.direction = "OUT" if "out" in each.marks else "IN_OUT" if "in out" in each.marks else "IN"
            each.bits = [MARKS[mark] for mark in each.marks if mark in MARKS]
            try:
                self._kind(struct, each)
            except HeaderError as error:
                problems.append(str(error))
        if problems:
            raise HeaderError("\n".join(problems))
        for each in struct.fields:
            for name in (each.count, each.inner_count):
                if name and struct.field(name).kind in ("SIGNED", "UNSIGNED"):
                    struct.field(name).kind = "COUNT"
        for each in struct.fields:
            if each.kind == "CALLBACK":
                self._user_data(struct, each)

    def _user_data(self, struct: Struct, callback: Field) -> None:
        name = callback.name
        guesses = [callback.named("data"), f"{name}_arg", f"{name}_user_arg", name.replace("_callback", "_user_arg")]
        guesses += ["callback_data", "user_arg", "user_data", f"{name}_data"]
        for guess in filter(None, guesses):
            match = next((each for each in struct.fields if each.name == guess != name), None)
            if match is not None and match.kind in ("USER_DATA", "POINTER"):
                match.kind, match.owner, match.type = "USER_DATA", name, ""
                match.count = match.inner_count = ""
                return

    def _kind(self, struct: Struct, each: Field) -> None:
        ctype = each.ctype
        base = re.sub(r"\b(const|struct)\b|\*|\[\d+\]", "", ctype).strip()
        stars = ctype.count("*")
        if "(*" in ctype:
            callback = self._callback(ctype, f"{struct.name.removesuffix('_Args')}_{each.name}")
            each.kind, each.type = "CALLBACK", callback
            self._finish_parameters(callback)
        elif each.name == "struct_size":
            each.kind = "STRUCT_SIZE"
        elif base == "PJRT_Extension_Base":
            each.kind = "EXTENSIONS"
        elif "[" in ctype:
            each.kind, each.element = "ARRAY", scalar_kind(base)
            each.bits.append("INLINE")
            each.element_size, each.count = self._size(base)[0], ""
        elif stars == 0:
            self._value(each, base)
        elif re.search(r"(^|_)(user_arg|user_data|callback_data|deleter_arg)$", each.name) and base == "void":
            each.kind = "USER_DATA"
        elif "address" in each.marks or (base == "PJRT_CallbackError"):
            each.kind = "POINTER"
        else:
            self._pointer(struct, each, base, stars)

    def _finish_parameters(self, callback: str) -> None:
        struct = self.structs[self.callbacks[callback].args]
        if struct.parameters:
            self._finish(struct)

    def _value(self, each: Field, base: str) -> None:
        if base in self.callbacks:
            each.kind, each.type = "CALLBACK", base
        elif base in self.enums:
            each.kind, each.type = "ENUM", base
        elif base in _SIZES:
            each.kind = scalar_kind(base)
        elif base in self.structs:
            each.kind, each.type = "STRUCT_VALUE", base
        else:
            raise HeaderError(f"{each.name}: the type {base} is unknown")

    def _pointer(self, struct: Struct, each: Field, base: str, stars: int) -> None:
        count = self._count(struct, each)
        inner = each.named("inner")
        if base in self.handles:
            kind, each.type = "HANDLE", base
        elif base in self.structs:
            kind, each.type = "STRUCT", base
        elif base in self.enums:
            kind, each.type = "ENUM", base
        elif base == "char":
            kind = "BYTES" if _BINARY.search(each.name) or "bytes" in each.marks else "TEXT"
            kind = "TEXT" if "text" in each.marks else kind
        elif base in ("void", "uint8_t"):
            kind = "BYTES"
        else:
            kind = scalar_kind(base)
        each.inner_count = inner
        if kind in ("HANDLE", "STRUCT", "TEXT", "BYTES"):
            stars -= 1
        if kind == "STRUCT" and stars == 0 and (count or "values" in each.marks):
            kind, stars = "STRUCT_VALUE", 1
        if kind == "STRUCT" and "values" in each.marks:
            kind, stars = "STRUCT_VALUE", 2
        if stars == 0:
            each.kind, each.count = kind, "" if kind == "HANDLE" else count
            if (kind == "BYTES" and not count) or (kind == "TEXT" and struct.parameters and not count):
                each.kind = "POINTER"  # what a deleter deletes need not end with a zero
            each.element_size = 1 if kind in ("BYTES", "TEXT") else 0
            return
        each.kind = "ARRAY" if stars == 1 else "LISTS"
        each.element, each.count = kind, count
        if kind in ("HANDLE", "STRUCT", "TEXT", "BYTES") or (stars == 2 and not inner):
            each.element_size = 8
        else:
            each.element_size = self._size(base)[0]
        if kind in ("TEXT", "BYTES") and not inner:
            each.inner_count = self._sizes_of(struct, each)
        if not count and not {"one", "values"} & set(each.marks) and not struct.parameters:
            raise HeaderError(
                f"{struct.name}.{each.name}: the number of elements is unknown; mark it with 'count NAME'"
            )

    def _count(self, struct: Struct, each: Field) -> str:
        if name := each.named("count"):
            return name
        name = each.name
        stem = name.removesuffix("s")
        guesses = [f"{name}_size", f"num_{name}", f"{name}_num_dims", f"{name}_dim_num", f"{name}_len"]
        guesses += [name.replace("dims", "num_dims"), f"num_{stem}", f"{name.removesuffix('_ptr')}_size"]
        guesses += [f"{stem}_size" if stem != name else ""]
        integers = [f.name for f in struct.fields if f.ctype in ("size_t", "int", "int32_t")]
        for guess in guesses:
            if guess != name and guess in integers:
                return guess
        if "one" in each.marks or (each.ctype.count("*") == 1 and not re.search("int|size|_Type", each.ctype)):
            return ""
        numbers = [n for n in integers if n.startswith("num_")]
        return numbers[0] if len(numbers) == 1 else self._count_of_sized(struct, each)

    def _count_of_sized(self, struct: Struct, each: Field) -> str:
        """Return the count of the array whose sizes an array holds."""
        for other in struct.fields:
            if other is not each and other.ctype.count("*") == 2 and not other.ctype.startswith("size_t"):
                try:
                    if self._sizes_of(struct, other) == each.name:
                        return self._count(struct, other)
                except HeaderError:
                    continue
        return ""

    def _sizes_of(self, struct: Struct, each: Field) -> str:
        stem = each.name.removesuffix("s")
        guesses = [each.named("inner"), f"{each.name}_sizes", f"{stem}_sizes", f"{each.name}_size", f"{stem}_size"]
        guesses += [f"{each.name.removeprefix('serialized_')}_sizes", each.name.replace("_data", "_size")]
        names = {f.name for f in struct.fields if f.ctype.endswith("size_t *")}
        for guess in guesses:
            if guess in names:
                return guess
        raise HeaderError(f"{struct.name}.{each.name}: the sizes of the texts are unknown; mark it with 'inner NAME'")

    def destroyer(self, handle: str) -> str:
        """Return the function that destroys a kind of handle; empty if there is none."""
        for function in self.functions:
            first = self.handle_field(function)
            if first and first.type == handle and "DESTROYS" in first.bits:
                return function.name
        return ""

    def handle_field(self, function: Function) -> Field | None:
        """Return the field with the handle that a function is a method of: the first one that the caller sets."""
        fields = self.structs[function.args].fields
        return next((each for each in fields if each.kind == "HANDLE" and each.direction == "IN"), None)

    def _lifetimes(self) -> None:
        """Mark what functions do with handles, where the rule is enough: by the function's name and the kind."""
        for function in self.functions:
            first = self.handle_field(function)
            last = function.name.rpartition("_")[2]
            if first and not {"DESTROYS", "DELETES", "CONSUMES"} & set(first.bits):
                if last == "Destroy" or re.match(r"Delete\w+$", last) or re.search(r"Destroy_\w+$", function.name):
                    first.bits.append("DESTROYS")
                elif last == "Delete":
                    known = any(f.name == f"{function.name[:-7]}_Destroy" for f in self.functions)
                    first.bits.append("DELETES" if known else "DESTROYS")
        owned = {handle for handle in self.handles if self.destroyer(handle)}
        for function in [*self.functions, *self.callbacks.values()]:
            struct = self.structs[function.args]
            first = self.handle_field(function)
            for each in struct.fields:
                if each.kind == "HANDLE" and each.direction == "OUT" and not {"CREATES", "BORROWS"} & set(each.bits):
                    deleter = any(f.kind == "CALLBACK" and f.direction == "OUT" for f in struct.fields)
                    each.bits.append("CREATES" if each.type in owned or deleter else "BORROWS")
            for each in struct.fields:
                new = {"CREATES", "BORROWS", "FILLS"} & set(each.bits)
                if each.kind in ("TEXT", "BYTES", "ARRAY", "STRUCT") and each.direction == "OUT" and not new:
                    each.bits.append("BORROWS")
                if "BORROWS" in each.bits and not each.owner:
                    each.owner = each.named("owner") or self._owner(struct, first)

    def _owner(self, struct: Struct, first: Field | None) -> str:
        """Return the field with the owner of what a function returns: the holder that comes with it, or the handle."""
        holder = next((f for f in struct.fields if f.kind == "HANDLE" and "CREATES" in f.bits), None)
        deleter = any(f.kind == "CALLBACK" and f.direction == "OUT" for f in struct.fields)
        if holder is not None and deleter:
            return holder.name
        return first.name if first else ""


def _camel(name: str) -> str:
    """Return the function of the profiler for a slot: ``Error_Message`` for ``error_message``."""
    words = "".join(part.capitalize() for part in name.split("_"))
    return re.sub("^Error", "Error_", words)
