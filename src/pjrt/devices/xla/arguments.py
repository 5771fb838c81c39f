"""Checks of the arguments of an execution against the parameters of the program."""

from __future__ import annotations

from collections.abc import Sequence

from pjrt.api.buffer import Buffer
from pjrt.api.checks import expect_sequence
from pjrt.api.errors import InvalidArgumentError
from pjrt.devices.xla.array_type import ArrayType
from pjrt.devices.xla.buffer import XlaBuffer


def checked(arguments: Sequence[Buffer], types: Sequence[ArrayType], program: str) -> list[XlaBuffer]:
    """Return the arguments, which fit the parameters' types and have values.

    Raises:
        InvalidArgumentError: the number of arguments, the type of one or its place is wrong.
        FailedPreconditionError: an argument was deleted or donated.
    """
    arguments = expect_sequence(arguments, "the arguments as a list of buffers")
    if len(arguments) != len(types):
        expected = f"{len(types)} argument{'' if len(types) == 1 else 's'}"
        raise InvalidArgumentError(f"the program {program!r} takes {expected}, found {len(arguments)}")
    buffers = []
    for number, (argument, expected_type) in enumerate(zip(arguments, types, strict=True)):
        if not isinstance(argument, XlaBuffer):
            raise InvalidArgumentError(
                f"argument {number} of the program {program!r} must be a buffer of the same client, found "
                f"{type(argument).__name__}; put it there with client.buffer_from_host"
            )
        if not expected_type.accepts(argument.type):
            raise _mismatch(number, argument, expected_type, program)
        argument.check_usable()
        buffers.append(argument)
    return buffers


def check_donated_once(arguments: Sequence[XlaBuffer], donated: frozenset[int], program: str) -> None:
    """Refuse a buffer that is donated and used as another argument as well.

    Raises:
        InvalidArgumentError: a donated buffer is given twice.
    """
    for number in donated:
        others = [n for n, argument in enumerate(arguments) if argument is arguments[number] and n != number]
        if others:
            raise InvalidArgumentError(
                f"the program {program!r} donates argument {number}, which is also argument {others[0]}; pass a copy "
                "for one of them (buffer.copy_to(buffer.device))"
            )


def _mismatch(number: int, argument: XlaBuffer, expected: ArrayType, program: str) -> InvalidArgumentError:
    start = f"argument {number} of the program {program!r} must be {expected}"
    place, found_place = expected.memory_space.device, argument.device
    if found_place.client is not place.client:
        return InvalidArgumentError(f"{start} on {place}, found a buffer of another client; copy it by way of the host")
    if found_place is not place:
        return InvalidArgumentError(f"{start} on {place}, found it on {found_place}; use buffer.copy_to(device)")
    if argument.type.layout != expected.layout and argument.shape == expected.shape:
        return InvalidArgumentError(
            f"{start} with the layout {expected.layout}, found {argument.type.layout}; pass layout= to "
            "client.buffer_from_host"
        )
    return InvalidArgumentError(f"{start}, found {argument.type}")
