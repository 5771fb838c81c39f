"""An environment that a launcher makes, and the place that it gives to a process."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass

from pjrt.api.errors import InvalidArgumentError

_FIRST_PORT = 61440
_PORTS = 4096  # from the first port to the last one that exists


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a process in a job, as far as its environment states it.

    Attributes:
        coordinator_address: the leader's address: ``HOST:PORT``.
        process_count: the number of processes.
        process_index: the number of this process.
    """

    coordinator_address: str | None
    process_count: int | None
    process_index: int | None


class Environment(abc.ABC):
    """An environment that a launcher makes.

    Args:
        variables: the environment variables.

    Attributes:
        name: the name by which users choose it.
    """

    name: str

    def __init__(self, variables: Mapping[str, str]) -> None:
        self.variables = variables

    @abc.abstractmethod
    def is_present(self) -> bool:
        """Whether this process was started so."""

    @abc.abstractmethod
    def place(self) -> Place:
        """Return the place of this process.

        Raises:
            InvalidArgumentError: a variable is missing, or has a wrong value.
        """

    def number(self, name: str) -> int:
        """Return the number in an environment variable that must be set."""
        text = self.variables.get(name, "")
        if not text.isdecimal():
            found = f"found {text!r}" if text else "it is not set"
            raise InvalidArgumentError(
                f"expected a number in the environment variable {name}, because this looks like a process of "
                f"{self.name}; {found}; start the program as {self.name} requires, or give initialize() all arguments"
            )
        return int(text)


def port_of(number: int) -> int:
    """Return a port that all processes of a job choose, from a number that other jobs of the host do not have."""
    return _FIRST_PORT + number % _PORTS
