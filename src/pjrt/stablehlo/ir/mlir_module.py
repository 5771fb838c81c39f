"""Modules of MLIR: the one place that touches MLIR's bindings; XLA's converters are in ``_hlo_conversion``.

MLIR's objects are not safe to use from several threads at once, and keep their context alive. So each module gets a
context of its own, without worker threads. The user of an ``MlirModule`` enters it, which takes its lock.
"""

from __future__ import annotations

import functools
import io
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from types import TracebackType
from typing import Any, NamedTuple

from pjrt.api.errors import DataLossError, InternalError, InvalidArgumentError, PjrtError, UnimplementedError
from pjrt.api.printable import perhaps
from pjrt.stablehlo.encodings import jaxlib
from pjrt.stablehlo.encodings.format import Version

_LONGEST = 600


@contextmanager
def collected(context: Any) -> Iterator[list[str]]:
    """Collect the diagnostics of a context, which go to the standard error output otherwise."""
    messages: list[str] = []

    def listen(diagnostic: Any) -> bool:
        messages.append(f"{place_of(str(diagnostic.location))}{diagnostic.message}")
        return True

    handler = context.attach_diagnostic_handler(listen)
    try:
        yield messages
    finally:
        handler.detach()
    if handler.had_error:
        raise InternalError("the handler of MLIR's diagnostics failed")


@contextmanager
def senseless_refused() -> Iterator[None]:
    """Convert errors that the bindings raise for names and values that only damaged programs have."""
    try:
        yield
    except PjrtError:
        raise
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        is_no_text = re.search(_NO_TEXT, str(error))
        what = "a name that is not UTF-8" if is_no_text else f"{type(error).__name__}: {error}"
        raise InvalidArgumentError(f"the program holds something senseless: {what}") from error


_NO_TEXT = r"nanobind::.*\(\): conversion error"


def place_of(location: str) -> str:
    """Return a diagnostic's location as a prefix; positions in text without a name are its line and column.

    Of a chain of calls, which may fill the whole message, the innermost is left.
    """
    inside, *callers = location.removeprefix("loc(").removesuffix(")").split(" at callsite(")
    if callers:
        inside = inside.replace("callsite(", "")
        inside += ")" * (inside.count("(") - inside.count(")"))
    if inside == "unknown" or inside.endswith(":0:0"):
        return ""
    return re.sub(r'^"-":(\d+):(\d+)$', r"line \1, column \2", inside) + ": "


def first_of(messages: list[str], error: Exception) -> str:
    """Return the first of the collected messages; the first diagnostic in an exception's text if there are none."""
    return shortened(in_plain_words(messages[0])) if messages else first_in(error)


_DIAGNOSTIC = r'error: (?:"-":(\d+:\d+)|[^\n]*?): (.*)'


def first_in(error: Exception) -> str:
    """Return the first of the diagnostics that the bindings put into one exception."""
    text = str(error)
    match = re.search(_DIAGNOSTIC, text, re.DOTALL)
    if match is None:
        return shortened(in_plain_words(text))
    place = "" if match[1] in (None, "0:0") else f"line {match[1].replace(':', ', column ')}: "
    return shortened(place + in_plain_words(re.split(_NEXT, match[2])[0]))


def first_printed(text: str) -> str:
    """Return the first of the diagnostics in a text that MLIR printed, without its notes."""
    match = re.match(r"(?:-:(\d+):(\d+)|([^\n]*?)): error: (.*)", text, re.DOTALL)
    if match is None:
        return shortened(in_plain_words(text))
    place = f"line {match[1]}, column {match[2]}" if match[1] else match[3]
    return shortened(f"{place}: {in_plain_words(re.split(_NEXT, match[4])[0])}")


_NEXT = r"\n\s*(?:[^\n]*: )?(?:note|error): "
"""The beginning of the diagnostic after the first."""


def in_plain_words(message: str) -> str:
    """Return a message of MLIR without C++'s names and the words of MLIR's own developers."""
    for pattern, words in _PLAIN:
        message = re.sub(pattern, words, message, flags=re.DOTALL)
    return message


_DIALECTS = "programs have operations of func, stablehlo, chlo, sdy and mhlo"


def _unknown_operation(match: re.Match[str]) -> str:
    name = match["name"]
    dialect, _, _ = name.partition(".")
    if dialect == "vhlo":  # it is known by this message that a program is of a newer StableHLO
        return match[0]
    if dialect not in ("chlo", "sdy", "stablehlo"):
        return f"there is no operation '{name}'; {_DIALECTS}"
    known = {getattr(each, "OPERATION_NAME", "") for each in vars(jaxlib.dialect(dialect)).values()}
    return f"there is no operation '{name}'{perhaps(name, known, cutoff=0.8)}"


def _wrong_kind(match: re.Match[str]) -> str:
    classes = vars(jaxlib.dialect(match["operation"].partition(".")[0])).values()
    operation = next((each for each in classes if getattr(each, "OPERATION_NAME", "") == match["operation"]), None)
    stated = getattr(getattr(operation, match["attribute"], None), "fget", None)
    kind = getattr(stated, "__annotations__", {}).get("return")
    expected = _KINDS.get(getattr(kind, "__name__", ""), "a value of another kind")
    return f"'{match['operation']}' op expects as attribute '{match['attribute']}' {expected}, found {match['found']}"


_KINDS = {
    "BoolAttr": "true or false",
    "DenseBoolArrayAttr": "a list such as array<i1: true, false>",
    "DenseI64ArrayAttr": "a list such as array<i64: 1, 2>",
    "DenseIntElementsAttr": "integers such as dense<1> : tensor<2xi64>",
    "FloatAttr": "a number such as 1.0e-3 : f32",
    "IntegerAttr": "an integer such as 1 : i64",
    "StringAttr": 'a text such as "text"',
}
"""The spelling of an attribute, by the name of its class in MLIR's bindings."""

_PLAIN: Sequence[tuple[str, str | Callable[[re.Match[str]], str]]] = (
    (r"^custom op '(?P<name>[^']+)' is unknown.*", _unknown_operation),
    (r"^unregistered operation '(?P<name>[^']+)' found in dialect .*", _unknown_operation),
    (
        r"^invalid properties .* for op (?P<operation>[\w.]+): "
        r"Invalid attribute `(?P<attribute>\w+)` in property conversion: (?P<found>.*)",
        _wrong_kind,
    ),
    (r"^Dialect `\w+' not found for custom op '(?P<name>[^']+)'.*", _unknown_operation),
    (r"^operation being parsed with an unregistered dialect.*", f"there is no such operation; {_DIALECTS}"),
    (r"^expected non-function type", "expected a type such as tensor<4xf32>"),
    (r"^custom op ('[^']+') (?=\1)", ""),
    (r"^custom op ('[^']+') ", r"\1 op "),
    (r"::mlir::(?:\w+::)*", ""),
    (r"failed to satisfy constraint: Which comparison operation .*", "must be a comparison_direction, such as EQ"),
    (r"failed to satisfy constraint: Which comparison type .*", "must be a comparison_type, such as FLOAT"),
    (r"failed to satisfy constraint: ", "must be: "),
    (r"(\d+-bit) signless integer attribute", r"a \1 integer"),
    (r"(\d+-bit) signless integer", r"\1 integer"),
    (r"invalid kind of attribute specified", "expects a value of another kind here"),
    (r"use of undeclared SSA value name", "use of a value that is not defined"),
    (r"expected SSA operand", "expected a value such as %x"),
    (r"inferred type\(s\) (.*) are incompatible with return type\(s\) of operation (.*)", r"expects \1, found \2"),
    (r"inferred shape '(.*)' is incompatible with return type of operation (.*)", r"expects the shape \1, found \2"),
    (r"SmallVector unable to grow.*\((\d+)\) is larger.*", r"a list in it would have \1 elements"),
)
"""Patterns of MLIR's messages, and what is said in their place."""


def shortened(message: str) -> str:
    """Return a message in one line of limited length."""
    one_line = " ".join(message.split())
    return one_line if len(one_line) <= _LONGEST else one_line[:_LONGEST] + " …"


Sizes = Sequence[int | None]
"""The sizes of a tensor; None for one that is known only when the program runs."""


def broken_rule(operation: Any) -> str:
    """Return the rule that an operation breaks, and what was found; empty if it breaks none."""
    rule = _RULES.get(operation.name)
    return "" if rule is None else rule(operation)


def _gather(operation: Any) -> str:
    widths = list(operation.attributes["slice_sizes"])
    if 0 not in widths or 0 in _sizes(operation.results[0]):
        return ""
    numbers = str(operation.attributes["dimension_numbers"])
    dropped = [int(number) for match in re.findall(_DROPPED, numbers) for number in re.findall(r"\d+", match)]
    if all(widths[dimension] for dimension in dropped):
        return ""
    return f"expects slice sizes of 1 in dimensions that the result drops, found {widths}"


_DROPPED = r"(?:collapsed_slice_dims|operand_batching_dims) = \[([^\]]*)\]"


def _torch_index_select(operation: Any) -> str:
    values, indices = map(_sizes, operation.operands)
    dimension, batches = (operation.attributes[name].value for name in ("dim", "batch_dims"))
    if not 0 <= batches <= min(dimension, len(indices)) or dimension >= len(values):
        return (
            f"expects 0 <= batch_dims <= dim < {len(values)} and batch_dims <= {len(indices)}, found batch_dims "
            f"{batches} and dim {dimension}"
        )
    if not _fit(values[:batches], indices[:batches]):
        return f"expects operands of equal sizes in batch_dims, found {_spelled(values)} and {_spelled(indices)}"
    if values[dimension] == 0 and 0 not in _sizes(operation.results[0]):
        return f"expects elements in dimension {dimension} to select from, found {_spelled(values)}"
    return _wrong_result(operation, [*values[:dimension], *indices[batches:], *values[dimension + 1 :]])


def _einsum(operation: Any) -> str:
    config = str(operation.attributes["einsum_config"].value)
    given, arrow, wanted = config.replace(" ", "").partition("->")
    terms, operands = given.split(","), [_sizes(operand) for operand in operation.operands]
    if len(terms) != len(operands):
        return f"expects einsum_config to have a term for each of {len(operands)} operands, found {config!r}"
    if "." in config:  # the dimensions that dots stand for are left to the compiler
        return ""
    known: dict[str, int | None] = {}
    for letters, sizes in zip(terms, operands, strict=True):
        if len(letters) != len(sizes) or not re.fullmatch("[a-zA-Z]*", letters):
            return f"expects {len(sizes)} letters for the operand {_spelled(sizes)}, found {letters!r} in {config!r}"
        for letter, size in zip(letters, sizes, strict=True):
            before = known.setdefault(letter, size)
            if not _fit([before], [size]) and 1 not in (before, size):
                return f"expects one size for {letter!r} of {config!r}, found {before} and {size}"
            known[letter] = size if before in (None, 1) else before
    uses = Counter(given)
    result = wanted if arrow else sorted(letter for letter in known if uses[letter] == 1)
    if not known.keys() >= set(result) or len(set(result)) < len(result):
        return f"expects letters of the operands behind the arrow, each once, found {config!r}"
    return _wrong_result(operation, [known[letter] for letter in result])


def _wrong_result(operation: Any, expected: Sizes) -> str:
    found = _sizes(operation.results[0])
    return "" if _fit(expected, found) else f"expects a result of shape {_spelled(expected)}, found {_spelled(found)}"


def _fit(sizes: Sizes, others: Sizes) -> bool:
    return len(sizes) == len(others) and all(
        None in (size, other) or size == other for size, other in zip(sizes, others, strict=True)
    )


def _window(operation: Any) -> str:
    """Refuse the number by which MLIR marks unknown sizes: it takes it for such a size, and no window has one."""
    sizes = list(operation.attributes["window_dimensions"]) if "window_dimensions" in operation.attributes else []
    return "" if all(size > 0 for size in sizes) else f"expects window_dimensions above 0, found {sizes}"


def _rng_bit_generator(operation: Any) -> str:
    """Refuse states that the algorithm does not have: XLA's compiler ends with an internal error."""
    algorithm = re.sub(r".* |>$", "", str(operation.attributes["rng_algorithm"]))
    words, state = _STATES.get(algorithm), operation.operands[0].type
    if words is None or re.fullmatch(rf"tensor<[{words}?]xu?i64>", str(state)):
        return ""
    return f"expects a state of {' or '.join(words)} ui64 for {algorithm}, found {state}"


_STATES = {"THREE_FRY": "2", "PHILOX": "23"}


def _function(operation: Any) -> str:
    """Refuse what is stated of arguments and results in another form than frameworks use: XLA takes it for nothing."""
    for which, thing in (("arg_attrs", "argument"), ("res_attrs", "result")):
        if which in operation.attributes:
            for number, stated in enumerate(operation.attributes[which]):
                for name in _TEXTS:
                    if name in stated and (problem := _text(name, f" of {thing} {number}", stated[name])):
                        return problem
    return ""


_SHARDING = "mhlo.sharding"
_TEXTS = ("mhlo.layout_mode", "mhlo.memory_kind", _SHARDING)


def _custom_call(operation: Any) -> str:
    attributes = operation.attributes
    if _SHARDING in attributes and (problem := _text(_SHARDING, "", attributes[_SHARDING])):
        return problem
    target = attributes["call_target_name"].value
    return _annotation(operation, target) if target in _ANNOTATIONS else ""


_ANNOTATIONS = frozenset({"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "annotate_device_placement"})


def _annotation(operation: Any, target: str) -> str:
    """Refuse annotations of something else than the result: XLA puts the operand in the result's place, or ends."""
    operands, results = operation.operands, operation.results
    if "indices_of_shape_operands" in operation.attributes:  # operands behind the first one are sizes
        operands = list(operands)[:1]
    if (len(operands), len(results)) != (1, 1):
        return f"expects one operand and one result for {target!r}, found {len(operands)} and {len(results)}"
    (one,), (other,) = operands, results
    ranked = [getattr(each.type, "has_rank", None) for each in (one, other)]  # None for what is no tensor
    if one.type == other.type or False in ranked:
        return ""
    if all(ranked):
        sizes, result_sizes = _sizes(one), _sizes(other)
        may_differ = target.startswith("SPMD") and len(sizes) == len(result_sizes)
        if one.type.element_type == other.type.element_type and (may_differ or _fit(sizes, result_sizes)):
            return ""
    return f"expects a result of the type of the operand for {target!r}, found {one.type} and {other.type}"


def _text(name: str, place: str, attribute: Any) -> str:
    if type(attribute).__name__ != "StringAttr":
        return f"expects {name}{place} to be a text, found {attribute}"
    if name != _SHARDING:
        return ""
    from pjrt.stablehlo.ir.sharding import Sharding  # here: few programs have one

    stated = attribute.value_bytes
    found = stated.strip()
    if not found:
        return ""
    if Sharding.is_serialized(stated):
        try:
            Sharding.from_proto(stated)
        except UnimplementedError:  # it has no tiles
            return ""
        except DataLossError as error:
            return f"expects {name}{place} to be a sharding, found {error.message}"
        return ""
    if _is_closed(found) and _BEGIN_OF_SHARDING.match(found):
        return ""
    return f"expects {name}{place} such as {{devices=[2,1]<=[2]}}, found {attribute}"


def _is_closed(text: bytes) -> bool:
    """Return whether a text begins and ends with a bracket, and all fit together."""
    open_: list[int] = []
    text = re.sub(rb'"(?:[^"\\]|\\.)*"', b"", text)
    for left, letter in enumerate(text, 1 - len(text)):
        if letter in _BRACKETS:
            open_.append(_BRACKETS[letter])
        elif letter in _BRACKETS.values() and (not open_ or open_.pop() != letter):
            return False
        if not open_ and left:
            return False
    return not open_


_BEGIN_OF_SHARDING = re.compile(
    rb"\s*\{[\s{]*(?:/\*[^*]*\*/)?\s*(?:devices=|replicated|maximal|manual|unknown|unreduced|single_device|mesh|shard_|\})"
)
_BRACKETS = dict(zip(b"{[(", b"}])", strict=True))


def _sizes(value: Any) -> Sizes:
    type_ = value.type
    return [None if type_.is_dynamic_dim(i) else type_.get_dim_size(i) for i in range(type_.rank)]


def _spelled(sizes: Sizes) -> str:
    return f"[{', '.join('?' if size is None else str(size) for size in sizes)}]"


_RULES: Mapping[str, Callable[[Any], str]] = {
    "func.func": _function,
    "stablehlo.custom_call": _custom_call,
    "stablehlo.einsum": _einsum,
    "stablehlo.gather": _gather,
    "stablehlo.reduce_window": _window,
    "stablehlo.rng_bit_generator": _rng_bit_generator,
    "stablehlo.select_and_scatter": _window,
    "stablehlo.torch_index_select": _torch_index_select,
    "stablehlo.unary_einsum": _einsum,
}


def walk(operation: Any) -> Iterator[Any]:
    """Yield an operation and each one inside it, in the order of the text.

    MLIR's own walk calls back from C++. A daemon thread that Python ends in such a call, at the end of the interpreter,
    takes the process with it.
    """
    for inner, _ in walk_with_depths(operation):
        yield inner


def walk_with_depths(operation: Any) -> Iterator[tuple[Any, int]]:
    """Yield what ``walk`` yields, each operation with the number of operations that it lies in."""
    waiting: list[Iterator[Any]] = [iter((operation,))]
    while waiting:
        operation = next(waiting[-1], None)
        if operation is None:
            waiting.pop()
            continue
        inner = operation.operation
        yield inner, len(waiting) - 1
        regions = inner.regions
        if len(regions):
            waiting.append(chain.from_iterable(block.operations for region in regions for block in region.blocks))


def top_level(module: Any) -> Iterator[Any]:
    """Yield the operations of a module that lie in no other one, such as its functions."""
    for operation in module.body.operations:
        yield operation.operation


def symbols(attribute: Any) -> Iterator[str]:
    """Yield the names of the functions and meshes that an attribute refers to."""
    kind = type(attribute).__name__
    if kind == "FlatSymbolRefAttr":
        yield attribute.value
    elif kind == "SymbolRefAttr":
        yield attribute.value[-1]
    elif kind == "ArrayAttr":
        for inner in attribute:
            yield from symbols(inner)
    elif kind == "DictAttr":
        for item in attribute:
            yield from symbols(item.attr)


def inline(operation: Any) -> None:
    """Put the operations of a region in the place of the operation that has it."""
    block = operation.regions[0].blocks[0]
    for argument, operand in zip(block.arguments, operation.operands, strict=True):
        argument.replace_all_uses_with(operand)
    *inner, last = list(block.operations)
    for each in inner:
        each.operation.move_before(operation)
    for result, value in zip(operation.results, last.operation.operands, strict=True):
        result.replace_all_uses_with(value)
    operation.erase()


FEW_ELEMENTS = 4
"""Constants of more elements are large: they can be left out of text."""


class MlirModule:
    """A program as jaxlib's MLIR bindings hold it, in a context of its own, with the lock that its objects need.

    Use it as ``with mlir_module as module: …``: the block holds the lock and has the module's context current.
    Use nothing that comes out of ``module`` outside of such a block while other threads may be in one.
    """

    def __init__(self, module: Any, context: Any) -> None:
        self._module = module
        self._context = context
        self._lock = threading.RLock()

    def __enter__(self) -> Any:
        self._lock.acquire()
        self._context.__enter__()
        return self._module

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._context.__exit__(kind, error, traceback)
        self._lock.release()

    @property
    def context(self) -> Any:
        """The ``jaxlib.mlir.ir.Context``."""
        return self._context


def parse(code: bytes) -> MlirModule:
    """Return the module in MLIR text or MLIR bytecode of the dialects func, stablehlo, chlo, sdy, mhlo and quant.

    Raises:
        InvalidArgumentError: MLIR refuses the code; the message is MLIR's own.
    """
    bindings = _bindings()
    context = _new_context(bindings, code)
    if b"quant" in code:
        # The dialect of quantized types has no Python bindings; reading a portable artifact, any one, loads it.
        bindings.stablehlo.deserialize_portable_artifact(context, _empty_artifact())
    with context:
        try:
            module = bindings.ir.Module.parse(code)
        except bindings.ir.MLIRError as error:
            raise InvalidArgumentError(first_in(error)) from error
        except (MemoryError, RuntimeError, ValueError) as error:  # of the standard library of C++: senseless sizes
            raise InvalidArgumentError(f"MLIR's parser gives up: {shortened(in_plain_words(str(error)))}") from error
    return MlirModule(module, context)


def parse_artifact(code: bytes) -> MlirModule:
    """Return the module in a portable artifact.

    Raises:
        InvalidArgumentError: MLIR refuses the artifact; the message is MLIR's own.
    """
    bindings = _bindings()
    context = _new_context(bindings, code)
    with context, collected(context) as messages:
        try:
            module = bindings.stablehlo.deserialize_portable_artifact(context, code)
        except ValueError as error:
            raise InvalidArgumentError(first_of(messages, error)) from error
        except (MemoryError, RuntimeError) as error:  # as in `parse`
            raise InvalidArgumentError(f"MLIR's reader gives up: {first_of(messages, error)}") from error
    return MlirModule(module, context)


def write_artifact(module: MlirModule, version: Version, *, other_dialects: bool = False) -> bytes:
    """Return the portable artifact of a module at a version; the module stays as it is.

    Args:
        module: the module; a copy of it is converted, because the conversion happens in place.
        version: the StableHLO version to write.
        other_dialects: whether operations and attributes of dialects other than StableHLO may stay in it as they are.

    Raises:
        InvalidArgumentError: the module holds what that version does not have; the message is MLIR's own.
    """
    bindings = _bindings()
    with module, collected(module.context) as messages:
        try:
            copy = bindings.ir.Module.parse(write_bytecode(module))
            artifact: bytes = bindings.stablehlo.serialize_portable_artifact(copy, str(version), other_dialects)
        except (ValueError, bindings.ir.MLIRError) as error:
            raise InvalidArgumentError(first_of(messages, error)) from error
    return artifact


def write_text(module: MlirModule, *, locations: bool, constants: bool = True) -> str:
    """Return the module as MLIR prints it, with large constants or with their first elements only."""
    limit = None if constants else FEW_ELEMENTS
    with module as mlir:
        text: str = mlir.operation.get_asm(enable_debug_info=locations, large_elements_limit=limit)
    return text


def write_bytecode(module: MlirModule) -> bytes:
    """Return the module as MLIR bytecode."""
    with module as mlir:
        return bytecode_of(mlir.operation)


def bytecode_of(operation: Any) -> bytes:
    """Return an operation of MLIR's as MLIR bytecode; its module must be entered."""
    # Not a class of our own: its method would run in Python, inside of MLIR's C++ code. When the interpreter ends, it
    # ends threads that run Python, and in there a thread must not be ended.
    file = io.BytesIO()
    operation.write_bytecode(file)
    return file.getvalue()


def run_passes(module: MlirModule, pipeline: str) -> None:
    """Run a pipeline of StableHLO's or MHLO's passes on the module.

    Raises:
        InvalidArgumentError: a pass failed.
    """
    bindings = _bindings()
    _register_passes()
    with module as mlir, collected(module.context) as messages:
        try:
            bindings.passmanager.PassManager.parse(pipeline).run(mlir.operation)
        except (bindings.ir.MLIRError, ValueError, RuntimeError) as error:
            raise InvalidArgumentError(first_of(messages, error)) from error


_SYMBOLS = 1
"""The depth of what is in a module itself, such as functions and meshes."""

DEEPEST = 100
"""The most operations with regions that may lie one inside the other: readers of a program recurse into them."""


CHLO_FUNCTIONS = frozenset(
    f"chlo.{name}"
    for name in (
        *("acos", "acosh", "asin", "asinh", "atan", "atanh", "bessel_i1e", "cosh", "digamma", "erf", "erf_inv", "erfc"),
        *("is_inf", "is_neg_inf", "is_pos_inf", "lgamma", "sinh", "tan"),
    )
)
"""The functions of one number that CHLO has and StableHLO lacks."""


def widen(operation: Any) -> None:
    """Let an operation on floats below 32 bits be computed with f32, and its result be rounded."""
    ir = _bindings().ir
    result = operation.results[0]
    own, element = result.type, operation.operands[0].type.element_type
    if element.width >= 32:
        return
    with operation.location:
        for number, operand in enumerate(operation.operands):
            wide = ir.RankedTensorType.get(operand.type.shape, ir.F32Type.get())
            point = ir.InsertionPoint(operation)
            operation.operands[number] = ir.Operation.create("stablehlo.convert", [wide], [operand], ip=point).result
        if own.element_type != element:
            return
        uses = list(result.uses)
        result.set_type(ir.RankedTensorType.get(own.shape, ir.F32Type.get()))
        point = ir.InsertionPoint.after(operation)
        narrow = ir.Operation.create("stablehlo.convert", [own], [result], ip=point).result
    for use in uses:
        use.owner.operands[use.operand_number] = narrow


def check(module: MlirModule) -> None:
    """Refuse a module that MLIR's parser accepts, and that breaks a rule or that MLIR's passes do not survive.

    Raises:
        DataLossError: the regions nest deeper than those of any program.
        InvalidArgumentError: an operation breaks a rule that MLIR does not check. Or a ``chlo.top_k`` has the ``k``
            that stands for an unknown size: the parser accepts it for any size, and the pass that writes it out ends
            the process.
    """
    with module as mlir:
        for operation, depth in walk_with_depths(mlir.operation):
            if depth <= _SYMBOLS and "sym_name" in operation.attributes:
                operation.attributes["sym_name"].value  # noqa: B018 - it raises where the name is not UTF-8
            if depth > DEEPEST and len(operation.regions):
                raise DataLossError(f"the program's regions are nested more than {DEEPEST} deep")
            if operation.name == "chlo.top_k" and operation.attributes["k"].value < 0:
                raise InvalidArgumentError("expected a 'chlo.top_k' with k of at least 0, found a negative one")
            if problem := broken_rule(operation):
                place = place_of(str(operation.location))
                raise InvalidArgumentError(f"{place}'{operation.name}' op {problem}")


def device_counts(attributes: Any) -> tuple[int, int]:
    """Return how many replicas and partitions a module's attributes state; 1 where they state nothing.

    Raises:
        InvalidArgumentError: a count is not a number from 1 up.
    """
    return _count(attributes, "mhlo.num_replicas"), _count(attributes, "mhlo.num_partitions")


def _count(attributes: Any, name: str) -> int:
    if name not in attributes:
        return 1
    attribute = attributes[name]
    count = int(attribute.value) if type(attribute).__name__ == "IntegerAttr" else 0
    if count < 1:
        raise InvalidArgumentError(f"expected {name} of the program to be a number from 1 up, found {attribute}")
    return count


def current_version() -> Version:
    """Return the newest StableHLO version that this jaxlib reads and writes."""
    return Version.parse(_bindings().stablehlo.get_current_version())


def minimum_version() -> Version:
    """Return the oldest StableHLO version that this jaxlib reads and writes."""
    return Version.parse(_bindings().stablehlo.get_minimum_version())


def load_bindings() -> None:
    """Import MLIR's bindings, which otherwise happens when they are first used.

    Raises:
        FailedPreconditionError: jaxlib is missing.
    """
    _bindings()


class _Bindings(NamedTuple):
    ir: Any
    passmanager: Any
    stablehlo: Any
    registry: Any


@functools.cache
def _bindings() -> _Bindings:
    purpose = "read what is inside programs"
    ir = jaxlib.load("mlir.ir", purpose)
    registry = ir.DialectRegistry()
    jaxlib.load("mlir._mlir_libs._jax_mlir_ext", purpose).register_dialects(registry)
    return _Bindings(ir, jaxlib.load("mlir.passmanager", purpose), jaxlib.dialect("stablehlo"), registry)


@functools.cache
def _register_passes() -> None:
    _bindings().stablehlo.register_stablehlo_passes()
    jaxlib.load("mlir._mlir_libs._mlirHlo", "convert HLO protos").register_mhlo_passes()


def _new_context(bindings: _Bindings, code: bytes) -> Any:
    """Return a context for a program; what the program does not name costs no time to import."""
    context = bindings.ir.Context()
    context.enable_multithreading(False)
    context.append_dialect_registry(bindings.registry)
    bindings.stablehlo.register_dialect(context)
    for name in ("chlo", "sdy"):
        if name.encode() in code:
            jaxlib.dialect(name).register_dialect(context)
    jaxlib.load("mlir._mlir_libs._mlirHlo", "read what is inside programs").register_mhlo_dialect(context)
    # The dialects of the registry are loaded when a program or a pass first needs them: all of them take 1.4 ms.
    return context


@functools.cache
def _empty_artifact() -> bytes:
    artifact: bytes = _bindings().stablehlo.serialize_portable_artifact_str("module {}", "1.0.0")
    return artifact
