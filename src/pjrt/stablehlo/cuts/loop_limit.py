"""Loops with a limit: the values of a ``while`` after some of its iterations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pjrt.api.errors import InvalidArgumentError
from pjrt.api.program import Program
from pjrt.stablehlo import _mlir, jaxlib
from pjrt.stablehlo.conversion import to_module
from pjrt.stablehlo.reader import read

_PURPOSE = "limit the iterations of a loop"


def limit_iterations(program: Program | str | bytes) -> Program:
    """Return a program whose loop ends after a number of iterations that the caller gives.

    Args:
        program: a program whose function ``main`` has one ``stablehlo.while`` in its body, as ``cut_operations`` makes
            one of a loop. It is trusted as a compiler trusts it.

    Returns:
        The program with one argument more, behind the others: the most iterations (a ``tensor<i32>``). Its last result
        is one more, too: the number of iterations that were done. The results of the loop are those behind them.

    Raises:
        InvalidArgumentError: the body of ``main`` has no loop or several.
        PjrtError: the program cannot be parsed.
    """
    module = to_module(read(program), trusted=True)
    with module as mlir:
        main = next((each.operation for each in mlir.body if _symbol(each) == "main"), None)
        blocks = [] if main is None else list(main.regions[0].blocks)
        loops = [] if not blocks else [each for each in blocks[0].operations if each.operation.name == _WHILE]
        if len(loops) != 1:
            raise InvalidArgumentError(f"expected a function main with one {_WHILE} in its body, found {len(loops)}")
        _limit(main, loops[0].operation)
        return Program(_mlir.write_bytecode(module))


_WHILE = "stablehlo.while"


def _symbol(operation: Any) -> str:
    attributes = operation.attributes
    return str(attributes["sym_name"].value) if "sym_name" in attributes else ""


def _limit(main: Any, loop: Any) -> None:
    ir = jaxlib.load("mlir.ir", _PURPOSE)
    body = main.regions[0].blocks[0]
    with loop.location:
        count_type, truth = ir.Type.parse("tensor<i32>"), ir.Type.parse("tensor<i1>")
        limit = body.add_argument(count_type, loop.location)
        zero = _constant(ir, count_type, 0, ir.InsertionPoint(loop))
        carried = [*loop.operands, zero, limit]
        attributes = loop.attributes
        new = ir.Operation.create(
            _WHILE,
            results=[value.type for value in carried],
            operands=carried,
            attributes={name: _for_two_more(name, attributes[name]) for name in attributes},
            regions=2,
            ip=ir.InsertionPoint(loop),
        )
        for index, region in enumerate(loop.regions):
            region.blocks[0].append_to(new.regions[index])
        condition, iteration = (region.blocks[0] for region in new.regions)

        count, most = (condition.add_argument(count_type, loop.location) for _ in range(2))
        end = condition.operations[len(condition.operations) - 1].operation
        at = ir.InsertionPoint(end)
        direction = ir.Attribute.parse("#stablehlo<comparison_direction LT>")
        less = ir.Operation.create(
            "stablehlo.compare",
            results=[truth],
            operands=[count, most],
            attributes={"comparison_direction": direction},
            ip=at,
        )
        both = ir.Operation.create("stablehlo.and", results=[truth], operands=[less.result, end.operands[0]], ip=at)
        _return(ir, end, [both.result])

        count, most = (iteration.add_argument(count_type, loop.location) for _ in range(2))
        end = iteration.operations[len(iteration.operations) - 1].operation
        at = ir.InsertionPoint(end)
        one = _constant(ir, count_type, 1, at)
        next_ = ir.Operation.create("stablehlo.add", results=[count_type], operands=[count, one], ip=at)
        _return(ir, end, [*end.operands, next_.result, most])

        results = list(new.results)
        for old, value in zip(list(loop.results), results, strict=False):
            old.replace_all_uses_with(value)
        loop.erase()
        end = body.operations[len(body.operations) - 1].operation
        returned = [*end.operands, results[-2]]
        _return(ir, end, returned)
        type_ = ir.FunctionType.get([each.type for each in body.arguments], [each.type for each in returned])
    main.attributes["function_type"] = ir.TypeAttr.get(type_)
    for name in ("arg_attrs", "res_attrs"):
        if name in main.attributes:
            empty = ir.DictAttr.get({}, main.context)
            main.attributes[name] = ir.ArrayAttr.get([*main.attributes[name], empty], main.context)


def _constant(ir: Any, type_: Any, value: int, at: Any) -> Any:
    spelled = ir.Attribute.parse(f"dense<{value}> : tensor<i32>")
    return ir.Operation.create("stablehlo.constant", results=[type_], attributes={"value": spelled}, ip=at).result


def _return(ir: Any, end: Any, values: Sequence[Any]) -> None:
    ir.Operation.create(end.name, operands=list(values), ip=ir.InsertionPoint(end))
    end.erase()


def _for_two_more(name: str, attribute: Any) -> Any:
    """Return an attribute of the loop for two more values, which every device has whole."""
    ir = jaxlib.load("mlir.ir", _PURPOSE)
    if name == "sdy.sharding":
        sdy = jaxlib.dialect("sdy")
        shardings = sdy.TensorShardingPerValueAttr(attribute).shardings
        whole = sdy.TensorShardingAttr.get(sdy.TensorShardingAttr(shardings[0]).mesh_or_ref, [])
        return sdy.TensorShardingPerValueAttr.get([*shardings, whole, whole])
    if name == "mhlo.sharding":
        text = str(attribute.value)
        if text.startswith("{{"):
            return ir.StringAttr.get(f"{text[:-1]}, {{replicated}}, {{replicated}}}}")
    return attribute
