"""Signs of life between the processes of a job, on a clock that only a test moves, over links in memory."""

from __future__ import annotations

import asyncio
import inspect
import selectors
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pjrt.distributed import initialize
from pjrt.distributed.follower import Link
from pjrt.distributed.leader import Hub
from pjrt.distributed.messages import Message
from pjrt.distributed.settings import Member

SILENCE = 10.0


class _Selector(selectors.DefaultSelector):
    """A selector that does not wait: where an event loop would, its time passes."""

    passed = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "nothing will ever happen"
        self.passed += timeout
        return super().select(0)


class Clock(asyncio.SelectorEventLoop):
    """An event loop whose time is as long as what it waited for."""

    def __init__(self) -> None:
        self._still = _Selector()
        super().__init__(self._still)

    def time(self) -> float:
        return self._still.passed

    def stand_still(self, seconds: float) -> None:
        """Let time pass in which nothing of this loop runs, as in a laptop that sleeps."""
        self._still.passed += seconds


class Wire:
    """One direction of a connection in memory, until it is cut: then nothing comes through, and neither end knows."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self.reader, self.is_cut, self._is_closed = reader, False, False

    def write(self, data: bytes) -> None:
        if not self.is_cut:
            self.reader.feed_data(data)

    def is_closing(self) -> bool:
        return self._is_closed

    @property
    def transport(self) -> Wire:
        return self

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.close()

    abort = write_eof

    async def wait_closed(self) -> None: ...

    def close(self) -> None:
        if not self._is_closed and not self.is_cut:
            self.reader.feed_eof()
        self._is_closed = True

    async def drain(self) -> None: ...


class Network:
    """Connects links with a hub, in the place of ``asyncio``'s sockets."""

    def __init__(self) -> None:
        self.wires: list[tuple[Wire, Wire]] = []
        self._sockets: list[Any] = []

    async def start_server(self, accept: Callable[..., Any], *, sock: Any, limit: int, ssl: None) -> Network:
        self._accept, self._limit = accept, limit
        self._sockets.append(sock)
        return self

    async def open_connection(
        self, host: str, port: int, *, limit: int, ssl: None, server_hostname: None
    ) -> tuple[asyncio.StreamReader, Wire]:
        there, back = (Wire(asyncio.StreamReader(each)) for each in (self._limit, limit))
        self.wires.append((there, back))
        self._served = asyncio.ensure_future(self._accept(there.reader, back))
        return back.reader, there

    def close(self) -> None:
        for each in self._sockets:
            each.close()

    def cut(self, number: int) -> None:
        for wire in self.wires[number]:
            wire.is_cut = True


class Job:
    """A hub and two links in one thread, and what each was told."""

    def __init__(self, clock: Clock, network: Network) -> None:
        self.clock, self.network = clock, network
        self.told: list[list[tuple[float, Message]]] = [[], [], []]
        members = [Member(index, "here", 100 + index) for index in range(3)]

        def notice(index: int) -> Callable[[Message], None]:
            return lambda event: self.told[index].append((clock.time(), event))

        self.hub = Hub(members[0], "token", 3, "", SILENCE, False, notice(0))
        self.links = [
            Link([("here", 1)], "token", member, 3, 0, SILENCE, SILENCE, notice(member.process_index))
            for member in members[1:]
        ]

    async def begin(self) -> None:
        await self.hub.listen("127.0.0.1", 0)
        joining = asyncio.gather(*(link.join(float("inf")) for link in self.links))
        await asyncio.gather(self.hub.complete(), joining)

    async def end(self) -> None:
        for link in self.links:
            await link.close()
        await self.hub.close()

    def losses(self, index: int) -> list[tuple[float, int, str]]:
        """Return what a process was told of losses: when, of which process, and why."""
        lost = ((at, event) for at, event in self.told[index] if event["type"] == "lost")
        return [(at, event["process_index"], event["reason"]) for at, event in lost]


@pytest.fixture
def new_job(monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    network = Network()
    monkeypatch.setattr("pjrt.distributed.leader.asyncio.start_server", network.start_server)
    monkeypatch.setattr("pjrt.distributed.follower.asyncio.open_connection", network.open_connection)
    clock = Clock()
    asyncio.set_event_loop(clock)
    try:
        made = clock.run_until_complete(_made(clock, network))
        yield made
        clock.run_until_complete(made.end())
    finally:
        asyncio.set_event_loop(None)
        clock.close()


async def _made(clock: Clock, network: Network) -> Job:
    return Job(clock, network)


@pytest.fixture
def job(new_job: Job) -> Job:
    new_job.clock.run_until_complete(new_job.begin())
    return new_job


def pass_time(job: Job, seconds: float) -> None:
    job.clock.run_until_complete(asyncio.sleep(seconds))


def test_a_host_that_takes_minutes_to_start_is_waited_for(new_job: Job) -> None:
    """The others join with the time that is the default, and give signs of life meanwhile."""
    seconds = inspect.signature(initialize).parameters["initialization_timeout"].default

    async def begin() -> None:
        await new_job.hub.listen("127.0.0.1", 0)
        early = asyncio.ensure_future(new_job.links[0].join(time.monotonic() + seconds))
        await asyncio.sleep(310)
        assert not early.done()
        await new_job.links[1].join(time.monotonic() + seconds)
        await asyncio.gather(early, new_job.hub.complete())

    new_job.clock.run_until_complete(begin())
    assert [new_job.losses(index) for index in range(3)] == [[], [], []]


def test_whoever_gives_signs_of_life_stays(job: Job) -> None:
    pass_time(job, 1000 * SILENCE)
    assert [job.losses(index) for index in range(3)] == [[], [], []]


@pytest.mark.parametrize("silent", [1, 2])
def test_who_is_silent_is_lost_in_time_and_learns_it(job: Job, silent: int) -> None:
    pass_time(job, 3.3 * SILENCE)
    begin = job.clock.time()
    job.network.cut(silent - 1)
    pass_time(job, 5 * SILENCE)
    reason = f"it gave no sign of life for {SILENCE:g} s"
    for index, lost in ((0, silent), (3 - silent, silent), (silent, 0)):
        ((at, process, why),) = job.losses(index)
        assert (process, why) == (lost, reason)
        assert 0.75 * SILENCE <= at - begin <= 1.5 * SILENCE  # the last sign was up to a quarter old, so is each look


def test_who_stood_still_does_not_take_the_others_for_lost(job: Job) -> None:
    for _ in range(5):
        pass_time(job, 0.7 * SILENCE)
        job.clock.stand_still(7 * SILENCE)
    pass_time(job, 3 * SILENCE)
    assert [job.losses(index) for index in range(3)] == [[], [], []]


def test_a_pause_is_not_taken_for_a_sign_of_life(job: Job) -> None:
    job.network.cut(0)
    for _ in range(3):
        pass_time(job, 0.4 * SILENCE)
        job.clock.stand_still(7 * SILENCE)
    assert job.losses(0) == []
    pass_time(job, 2 * SILENCE)
    assert [process for _, process, _ in job.losses(0)] == [1]
