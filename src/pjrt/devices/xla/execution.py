"""Executions: from checked arguments to buffers of results, at once or when all arguments are there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pjrt.api.buffer import Buffer
from pjrt.api.errors import PjrtError
from pjrt.api.future import Future
from pjrt.devices.xla.buffer import Source, XlaBuffer, waiting
from pjrt.devices.xla.errors import converted
from pjrt.devices.xla.future import flattened, in_thread, nothing
from pjrt.devices.xla.launch import Launcher, Results
from pjrt.devices.xla.pending_buffer import PendingBuffer
from pjrt.devices.xla.rendezvous import Contribution, Rendezvous, Started

if TYPE_CHECKING:
    from pjrt.devices.xla.client import XlaClient

Futures = list[Future[None]] | None
"""Where futures of completions go, if somebody wants them."""


class Executor:
    """Executes one program, in every way but the short one.

    Attributes:
        launcher: what starts the program.
    """

    __slots__ = ("_client", "_rendezvous", "launcher")

    def __init__(self, client: XlaClient, launcher: Launcher, rendezvous: Rendezvous) -> None:
        self._client = client
        self.launcher = launcher
        self._rendezvous = rendezvous

    def execute(
        self, rows: Sequence[Sequence[XlaBuffer]], kept: frozenset[int], launch_id: int, futures: Futures
    ) -> list[list[Buffer]]:
        """Runs on all devices.

        Args:
            rows: for each device its arguments.
            kept: the numbers of arguments that are not to be donated.
            launch_id: tells executions apart; 0 is none.
            futures: gets a future of the completion for each device.
        """
        sources = [[argument.source() for argument in row] for row in rows]
        if any(isinstance(source, Future) for row in sources for source in row):
            contributions = [self._contribution(row, taken, kept) for row, taken in zip(rows, sources, strict=True)]
            self.start_when_there(contributions, kept, launch_id)
            return [self._promised(contribution, place, futures) for place, contribution in enumerate(contributions)]
        try:
            results = self.launcher.run(sources, kept, launch_id)
        except PjrtError as error:
            return self.failed(error, rows, futures)
        for row in rows:
            use_up(row, self.launcher.donated - kept)
        if futures is not None:
            futures.extend(self._completion(results) for _ in rows)
        return [list(row) for row in self.launcher.buffers(results)]

    def contribute(
        self, row: Sequence[XlaBuffer], place: int, kept: frozenset[int], launch_id: int, futures: Futures
    ) -> list[Buffer]:
        """Gives one device's arguments; the program runs when all devices have theirs."""
        contribution = self._contribution(row, [argument.source() for argument in row], kept)
        self._rendezvous.join(place, contribution, kept, launch_id, self)
        return self._promised(contribution, place, futures)

    def failed(self, error: PjrtError, rows: Sequence[Sequence[Buffer]], futures: Futures = None) -> list[list[Buffer]]:
        """What becomes of a launch that jaxlib refused: if an argument was taken away meanwhile, that is raised;
        otherwise it is an execution that failed at once, and gives its error at the results.
        """
        for row in rows:
            for argument in row:
                if isinstance(argument, XlaBuffer):
                    argument.check_usable()
        if futures is not None:
            futures.extend(Future.failed(error) for _ in rows)
        return [[PendingBuffer.failed(error, kind) for kind in types] for types in self.launcher.result_types]

    def cancel(self, reason: str) -> None:
        """Fails launches that have not started because a device's arguments are missing."""
        self._rendezvous.cancel(self, reason)

    def _contribution(self, row: Sequence[XlaBuffer], sources: list[Source], kept: frozenset[int]) -> Contribution:
        """A device's part of a launch that starts later; what it donates is gone from now on."""
        for number in self.launcher.donated - kept:
            row[number].consume()
        return Contribution(sources)

    def _promised(self, contribution: Contribution, place: int, futures: Futures) -> list[Buffer]:
        started = contribution.started
        if futures is not None:
            futures.append(flattened(started, lambda launch: launch.completion))
        return [
            PendingBuffer(started.then(lambda launch, number=number: launch.sources[number]), kind)  # type: ignore[misc]  # mypy cannot tell the type of a lambda's default
            for number, kind in enumerate(self.launcher.result_types[place])
        ]

    def start_when_there(self, contributions: Sequence[Contribution], kept: frozenset[int], launch_id: int) -> None:
        """Start a launch when all arguments are there; see ``rendezvous.Joiner``."""
        sources = [source for contribution in contributions for source in contribution.sources]
        waited = Future.all(source for source in sources if isinstance(source, Future))

        def start(_: Future[None]) -> None:
            try:
                waited.result()
                results = self.launcher.run([contribution.sources for contribution in contributions], kept, launch_id)
                rows = self.launcher.buffers(results)
                for contribution, row in zip(contributions, rows, strict=True):
                    contribution.start(Started([buffer.source() for buffer in row], self._completion(results)))
            except Exception as error:
                failure = converted(error)
                for contribution in contributions:
                    if not contribution.started.done():
                        contribution.fail(failure)

        waited.add_done_callback(start)

    def _completion(self, results: Results) -> Future[None]:
        if results.token is not None:
            return in_thread(results.token.block_until_ready)
        return waiting(results.arrays[0], self._client, nothing)


def use_up(arguments: Sequence[Buffer], donated: frozenset[int]) -> None:
    """Sees to it that what was donated shows it: XLA leaves the memory to whoever still looks at it, and takes a copy
    of its own.
    """
    for number in donated:
        argument = arguments[number]
        if isinstance(argument, XlaBuffer) and not argument.is_deleted:
            argument.consume()
