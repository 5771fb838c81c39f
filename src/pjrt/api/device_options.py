"""The options of devices: checks for implementations of plugins; callers do not need them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pjrt.api.errors import InvalidArgumentError

_MOST_DEVICES = 4096
"""A larger number of virtual devices is taken for a mistake."""

_MOST_DIGITS = 9
"""Python refuses to read a number of thousands of digits, and no topology has a number of devices of ten."""


def check_option_names(platform: str, options: Mapping[str, object], known: Sequence[str]) -> None:
    """Raise an error for an option that a client does not have.

    Raises:
        InvalidArgumentError: an option is unknown.
    """
    for name in options:
        if name not in known:
            raise InvalidArgumentError(
                f"the device '{platform}' has no option {name!r}; it has {', '.join(known) or 'none'}"
            )


def check_num_devices(platform: str, options: Mapping[str, object]) -> int:
    """Return the option ``num_devices``, the number of virtual devices; 1 is the default.

    Raises:
        InvalidArgumentError: the option is not a number of devices.
    """
    count = options.get("num_devices", 1)
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= _MOST_DEVICES:
        raise InvalidArgumentError(
            f"the option num_devices of the device '{platform}' is a number from 1 to {_MOST_DEVICES}, found {count!r}"
        )
    return count


def topology_options(platform: str, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a topology whose name is its number of devices, which becomes the option ``num_devices``.

    Args:
        platform: the device's name, for messages.
        name: the number, such as ``8``; empty for the default.
        options: the other options; ``num_devices`` may stand there instead of in the name.

    Raises:
        InvalidArgumentError: the name is not a number, or the options have ``num_devices`` too.
    """
    if not name:
        return dict(options)
    if not name.isdecimal() or len(name) > _MOST_DIGITS or "num_devices" in options:
        raise InvalidArgumentError(
            f"a topology of the device '{platform}' is named by the number of its devices, such as '8', or has the "
            f"option num_devices instead; found the name {name!r} and the options {dict(options)}"
        )
    return {**options, "num_devices": int(name)}
