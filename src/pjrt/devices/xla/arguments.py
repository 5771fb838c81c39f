"""Arguments of executions: are they what the program takes?"""

from __future__ import annotations

from collections.abc import Sequence

from pjrt.api.buffer import Buffer
from pjrt.api.checks import expect_sequence
from pjrt.api.errors import InvalidArgumentError
from pjrt.devices.xla.array_type import ArrayType
from pjrt.devices.xla.buffer import XlaBuffer


def checked(arguments: Sequence[Buffer], types: Sequence[ArrayType], program: str) -> list[XlaBuffer]:
    """The arguments, which fit the parameters' types and have values.

    Raises:
        InvalidArgumentError: the number, a type or a place is wrong; says which, what was expected and what was found.
        FailedPreconditionError: one was deleted or donated.
    """
    arguments = expect_sequence(arguments, "the arguments as a list of buffers")
    if len(arguments) != len(types):
        expected = f"{len(types)} argument{'' if len(types) == 1 else 's'}"
        raise InvalidArgumentError(f"the program {program!r} takes {expected}, found {len(arguments)}")
    taken = []
    for number, (argument, wanted) in enumerate(zip(arguments, types, strict=True)):
        if not isinstance(argument, XlaBuffer):
            raise InvalidArgumentError(
                f"argument {number} of the program {program!r} must be a buffer of the same client, found "
                f"{type(argument).__name__}; put it there with client.buffer_from_host"
            )
        if not wanted.takes(argument.type):
            raise _unfit(number, argument, wanted, program)
        argument.check_usable()
        taken.append(argument)
    return taken


def check_donated_once(arguments: Sequence[XlaBuffer], donated: frozenset[int], program: str) -> None:
    """Refuses a buffer that is donated and used as another argument as well.

    Raises:
        InvalidArgumentError: there is one.
    """
    for number in donated:
        places = [other for other, argument in enumerate(arguments) if argument is arguments[number]]
        if len(places) > 1:
            raise InvalidArgumentError(
                f"the program {program!r} donates argument {number}, which is also argument "
                f"{next(p for p in places if p != number)}; pass a copy for one of them (buffer.copy_to(buffer.device))"
            )


def _unfit(number: int, argument: XlaBuffer, wanted: ArrayType, program: str) -> InvalidArgumentError:
    start = f"argument {number} of the program {program!r} must be {wanted}"
    place, found_place = wanted.memory_space.device, argument.device
    if found_place.client is not place.client:
        return InvalidArgumentError(f"{start} on {place}, found a buffer of another client; copy it by way of the host")
    if found_place is not place:
        return InvalidArgumentError(f"{start} on {place}, found it on {found_place}; use buffer.copy_to(device)")
    hint = ""
    if argument.type.layout != wanted.layout and argument.shape == wanted.shape:
        hint = "; say layout= to client.buffer_from_host"
        return InvalidArgumentError(f"{start} with the layout {wanted.layout}, found {argument.type.layout}{hint}")
    return InvalidArgumentError(f"{start}, found {argument.type}")
