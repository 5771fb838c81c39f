"""Checks of single operations: programs of StableHLO, whose results must be those of the reference interpreter.

Each check is about one operation, and runs its first case for some element types. ``pjrt test-device`` runs all cases
of all types.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from pjrt.api.element_type import ElementType
from pjrt.api.errors import PjrtError
from pjrt.capi import raw
from pjrt.conformance.judge import Judge
from pjrt.conformance.operation_table import Array, OperationCase, cases_of, operations
from pjrt.conformance.plugin.check import Check, Failed, Tier, Unsupported, add
from pjrt.conformance.plugin.subject import Subject

_TYPES = (ElementType.F32, ElementType.S32, ElementType.BF16, ElementType.PRED, ElementType.C64)
"""The element types: of a number on each way through a compiler, one. Operations on none of them use their first."""

_CALLS = ("PJRT_Client_Compile", "PJRT_LoadedExecutable_Execute", "PJRT_Buffer_ToHostBuffer")


def check_operation(operation: str, subject: Subject) -> None:
    """Run the first case of an operation for some element types, and compare the results."""
    if subject.samples.folder:
        raise Unsupported("operations of StableHLO")
    _ = subject.client  # unsupported for its own reason where there is none
    missing: dict[str, str] = {}
    compared = 0
    types = operations()[operation]
    for element_type in [each for each in _TYPES if each in types] or types[:1]:
        case = next(iter(cases_of(operation, element_type)), None)
        judge = _judge(case) if case is not None else None
        if case is None or judge is None:
            continue
        try:
            results = _results(subject, case)
        except Unsupported as lack:
            missing[element_type.mlir] = str(lack)
            continue
        except Failed as failure:
            raise Failed(
                f"{case.label}: {failure.expected}", f"{failure.found}, with the program\n{case.program}"
            ) from None
        wrong = judge.wrong_result(case, results)
        if wrong is not None:
            raise Failed(f"the results of {case.label}", f"{wrong.message}, with the program\n{case.program}")
        compared += 1
    if missing and not compared:
        raise Unsupported(f"{operation}: {next(iter(missing.values()))}")


def _judge(case: OperationCase) -> Judge | None:
    try:
        return Judge(case.program)
    except PjrtError:  # the reference interpreter does not run it
        return None


def _results(subject: Subject, case: OperationCase) -> list[Array]:
    """Return the results of a case.

    Raises:
        Unsupported: the plugin does not compile the program. The header requires no operation, and no code for one that
            a plugin lacks.
        Failed: the plugin failed later.
    """
    program = raw.Struct("PJRT_Program", code=_module(case.program), format="mlir")
    result = subject.attempt_compile(program)
    if result.error is not None:
        raise Unsupported(f"it does not compile: {result.error}")
    arguments = [subject.buffer(each) for each in case.inputs]
    (outputs,) = subject.execute(result.executable, [arguments])
    results = [subject.read(each) for each in outputs]
    subject.destroy_buffers(*arguments, *outputs)
    subject.call("PJRT_LoadedExecutable_Destroy", executable=result.executable)
    return results


def _module(program: str) -> bytes:
    return f"module @operation {{\n{program.replace('func.func @main', 'func.func public @main')}\n}}\n".encode()


def _add_all(names: Sequence[str]) -> None:
    for name in names:
        rule = f"A program of {name} computes what the specification of StableHLO defines."
        add(Check(f"operation.{name}", Tier.FRAMEWORK, _CALLS, rule, functools.partial(check_operation, name)))


_add_all(list(operations()))
