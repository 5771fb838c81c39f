"""Dispatch: launches on several devices have one order on all of them, whatever happens while they are put."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import toys

import pjrt
from pjrt.api.waits import Server
from pjrt.host.execution import Dispatcher


class Recorder:
    """A queue that notes what it is given, and first lets something happen."""

    def __init__(self, happens: Callable[[], object] = lambda: None) -> None:
        self.given: list[str] = []
        self.happens = happens
        self.server = Server("recorder")

    def put(self, execution: Any) -> None:
        self.given.append(execution.name)
        self.happens()


def launch(name: str, queues: list[Any], failures: list[Any] | None = None) -> list[Any]:
    """Make an execution without arguments for each queue."""
    noted = [] if failures is None else failures
    return [
        SimpleNamespace(
            name=name,
            inputs=[],
            outputs=[],
            spans_processes=False,
            fail=noted.append,
            definition=pjrt.Future(),
            device=SimpleNamespace(compute=queue),
        )
        for queue in queues
    ]


def test_a_launch_that_becomes_ready_while_another_is_put_comes_after_it_on_every_queue() -> None:
    # As when the garbage collector runs in the middle and drops a promise that the second launch was waiting for.
    dispatcher = Dispatcher([])
    happened = []

    def release_another() -> None:
        if not happened:
            happened.append(True)
            dispatcher.enqueue(launch("second", queues))

    queues = [Recorder(release_another), Recorder()]
    dispatcher.enqueue(launch("first", queues))
    assert [queue.given for queue in queues] == [["first", "second"]] * 2


def test_threads_that_put_at_the_same_time_agree_on_the_order() -> None:
    dispatcher = Dispatcher([])
    queues = [Recorder(), Recorder()]
    start = threading.Barrier(4)

    def put(number: int) -> None:
        start.wait(toys.TIMEOUT)
        for step in range(200):
            dispatcher.enqueue(launch(f"{number}.{step}", queues))

    threads = [threading.Thread(target=put, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(toys.TIMEOUT)
    assert queues[0].given == queues[1].given
    assert len(queues[0].given) == 800


def test_a_launch_that_cannot_be_put_fails_as_a_whole() -> None:
    def refuse() -> None:
        raise pjrt.UnavailableError("no thread")

    dispatcher = Dispatcher([])
    queues = [Recorder(), Recorder(refuse)]
    failures: list[Any] = []
    dispatcher.enqueue(launch("first", queues, failures))
    assert [str(error) for error in failures] == ["UNAVAILABLE: no thread"] * 2
