"""Executions: from checked arguments to buffers of results, at once or when all arguments are there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pjrt.api.buffer import Buffer
from pjrt.api.errors import PjrtError
from pjrt.api.future import Future
from pjrt.devices.xla._errors import converted
from pjrt.devices.xla.buffer import Source, XlaBuffer, waiting
from pjrt.devices.xla.future import flattened, in_thread, nothing
from pjrt.devices.xla.launch import Launcher, Results
from pjrt.devices.xla.promised_buffer import PromisedBuffer
from pjrt.devices.xla.rendezvous import Rendezvous, Share, Started

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
            shares = [self._share(row, taken, kept) for row, taken in zip(rows, sources, strict=True)]
            self.start_when_there(shares, kept, launch_id)
            return [self._promised(share, place, futures) for place, share in enumerate(shares)]
        try:
            results = self.launcher.run(sources, kept, launch_id)
        except PjrtError as error:
            return self.failed(error, rows, futures)
        for row in rows:
            use_up(row, self.launcher.donated - kept)
        if futures is not None:
            futures.extend(self._completion(results) for _ in rows)
        return [list(row) for row in self.launcher.buffers(results)]

    def give_share(
        self, row: Sequence[XlaBuffer], place: int, kept: frozenset[int], launch_id: int, futures: Futures
    ) -> list[Buffer]:
        """Gives one device's arguments; the program runs when all devices have theirs."""
        share = self._share(row, [argument.source() for argument in row], kept)
        self._rendezvous.join(place, share, kept, launch_id, self)
        return self._promised(share, place, futures)

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
        return [[PromisedBuffer.failed(error, kind) for kind in types] for types in self.launcher.result_types]

    def cancel(self, reason: str) -> None:
        """Fails launches that have not started because a device's arguments are missing."""
        self._rendezvous.cancel(self, reason)

    def _share(self, row: Sequence[XlaBuffer], sources: list[Source], kept: frozenset[int]) -> Share:
        """A device's part of a launch that starts later; what it donates is gone from now on."""
        for number in self.launcher.donated - kept:
            row[number].consume()
        return Share(sources)

    def _promised(self, share: Share, place: int, futures: Futures) -> list[Buffer]:
        started = share.started
        if futures is not None:
            futures.append(flattened(started, lambda launch: launch.completion))
        return [
            PromisedBuffer(started.then(lambda launch, number=number: launch.sources[number]), kind)  # type: ignore[misc]  # mypy cannot tell the type of a lambda's default
            for number, kind in enumerate(self.launcher.result_types[place])
        ]

    def start_when_there(self, shares: Sequence[Share], kept: frozenset[int], launch_id: int) -> None:
        """Start a launch when all arguments are there; see ``rendezvous.Joiner``."""
        sources = [source for share in shares for source in share.sources]
        waited = Future.all(source for source in sources if isinstance(source, Future))

        def start(_: Future[None]) -> None:
            try:
                waited.result()
                results = self.launcher.run([share.sources for share in shares], kept, launch_id)
                rows = self.launcher.buffers(results)
                for share, row in zip(shares, rows, strict=True):
                    share.start(Started([buffer.source() for buffer in row], self._completion(results)))
            except Exception as error:
                failure = converted(error)
                for share in shares:
                    if not share.started.done():
                        share.fail(failure)

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
