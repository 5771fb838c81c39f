"""Mutations of protobuf messages: of their bytes, and of their fields."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from benchmarks.fuzz.mutations import mutate_bytes

_NUMBERS = (0, 1, 2, 3, 4, 7, 8, 63, 64, 127, 255, 1000, 65535, 1 << 31, (1 << 32) - 1, 1 << 62, (1 << 63) - 1)
_STRINGS = ("", "x", "device", "pinned_host", "\0", "\N{SNOWMAN}", "n" * 3000, "xla::ifrt::HloSharding")
_REALS = (0.0, -1.0, 1e300, float("inf"), float("nan"))


def mutate_fields(message: Any, chance: random.Random, numbers: Sequence[int]) -> None:
    """Change one to four fields of a message, at any depth.

    Args:
        message: the message.
        chance: the source of chance.
        numbers: handles and other numbers that occur in the session.
    """
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        _mutate_one(_inner_message(message, chance), chance, numbers)


def _inner_message(message: Any, chance: random.Random) -> Any:
    """Return the message, or one inside it."""
    while True:
        inner: list[Any] = []
        for field, value in message.ListFields():
            if field.type == field.TYPE_MESSAGE:
                inner += list(value)[:50] if _is_repeated(field) and not _is_map(field) else [value]
        inner = [each for each in inner if hasattr(each, "ListFields")]
        if not inner or chance.random() < 0.25:
            return message
        message = chance.choice(inner)


def _mutate_one(message: Any, chance: random.Random, numbers: Sequence[int]) -> None:
    present = message.ListFields()
    fields = [field for field, _ in present] if present and chance.random() < 0.85 else message.DESCRIPTOR.fields
    if not fields:
        return
    field = chance.choice(list(fields))
    if _is_map(field) or chance.random() < 0.08:
        message.ClearField(field.name)
    elif _is_repeated(field):
        _mutate_repeated(getattr(message, field.name), field, chance, numbers)
    elif field.type == field.TYPE_MESSAGE:
        getattr(message, field.name).SetInParent()
    else:
        setattr(message, field.name, _scalar(field, getattr(message, field.name), chance, numbers))


def _mutate_repeated(values: Any, field: Any, chance: random.Random, numbers: Sequence[int]) -> None:
    how = chance.randrange(5)
    old = list(values)
    if how == 0 and old:
        del values[chance.randrange(len(old))]
    elif how == 1 and old:
        values.extend([chance.choice(old)] * chance.choice((1, 1, 2, 100)))
    elif how == 2 and len(old) > 1:
        chance.shuffle(old)
        del values[:]
        values.extend(old)
    elif field.type == field.TYPE_MESSAGE:
        values.add()
    elif how == 3 and old:
        values[chance.randrange(len(old))] = _scalar(field, chance.choice(old), chance, numbers)
    else:
        values.append(_scalar(field, None, chance, numbers))


def _scalar(field: Any, old: Any, chance: random.Random, numbers: Sequence[int]) -> Any:
    if field.type in (field.TYPE_STRING, field.TYPE_BYTES):
        text = field.type == field.TYPE_STRING
        if old and chance.random() < 0.7:
            changed = mutate_bytes(old.encode() if text else old, chance)
            return changed.decode(errors="ignore") if text else changed
        string = chance.choice(_STRINGS)
        return string if text else string.encode()
    if field.type in (field.TYPE_DOUBLE, field.TYPE_FLOAT):
        return chance.choice(_REALS)
    if field.type == field.TYPE_BOOL:
        return not old
    near = [old - 1, old + 1, -old, old ^ 1 << chance.randrange(40)] if old is not None else []
    number = chance.choice([chance.choice(_NUMBERS), chance.choice(numbers), *near])
    return _in_range(field, number if chance.random() < 0.8 else -number)


def _in_range(field: Any, number: int) -> int:
    bits = 32 if field.cpp_type in (field.CPPTYPE_INT32, field.CPPTYPE_UINT32, field.CPPTYPE_ENUM) else 64
    number &= (1 << bits) - 1
    signed = field.cpp_type in (field.CPPTYPE_INT32, field.CPPTYPE_INT64, field.CPPTYPE_ENUM)
    return number - (1 << bits) if signed and number >> bits - 1 else number


def _is_repeated(field: Any) -> bool:
    return bool(field.is_repeated) if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED


def _is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry
