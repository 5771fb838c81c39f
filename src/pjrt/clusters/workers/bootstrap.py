"""The bootstrap of a worker: where its controller is, and the secret that both know."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from pjrt.api.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """The first facts of a worker; the others come from the controller.

    Attributes:
        addresses: the controller's addresses, ``HOST:PORT``, of which the first one that answers is taken.
        token: the secret.
        index: the worker's number; ``None`` for any that is free.
        encrypted: whether the connection to the controller has TLS.
        timeout: the seconds in which the controller must answer.
        parent: the process with which the worker ends, on the same machine; 0 for none.
        environment: environment variables to set.
        working_directory: the directory to change to; empty for none.
    """

    addresses: Sequence[str]
    token: str = field(repr=False)
    index: int | None = None
    encrypted: bool = True
    timeout: float = 300.0
    parent: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)
    working_directory: str = ""

    def to_json(self) -> bytes:
        """Return the bootstrap as one line of JSON."""
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def of_json(line: bytes) -> Bootstrap:
        """Return the bootstrap that a line of JSON is.

        Raises:
            InvalidArgumentError: the line is no bootstrap.
        """
        try:
            return Bootstrap(**json.loads(line))
        except (ValueError, TypeError) as error:
            raise InvalidArgumentError(
                "expected the bootstrap of a worker as one line of JSON on the standard input, which a launcher of "
                f"pjrt.cluster() writes ({type(error).__name__})"
            ) from None
