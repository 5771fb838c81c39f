"""The worker: a process of the job, which serves its device to the controller."""

from __future__ import annotations

import contextlib
import functools
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator

from pjrt import system
from pjrt.api.errors import InvalidArgumentError, PjrtError, UnavailableError
from pjrt.api.printable import printable
from pjrt.clusters.workers.assignment import Assignment
from pjrt.clusters.workers.bootstrap import Bootstrap
from pjrt.clusters.workers.controller_calls import ControllerCalls
from pjrt.clusters.workers.controller_link import ControllerLink
from pjrt.clusters.workers.inner_node_assignment import InnerNodeAssignment
from pjrt.clusters.workers.server_files import bracketed, server_files
from pjrt.distributed.messages import Message

_END_SECONDS = 5.0
_IDLE_SECONDS = 5.0


def run(bootstrap: bytes) -> int:
    """Run a worker in this process, until its controller ends it or is gone; return the exit code.

    The controller learns why the worker cannot start. If it cannot be reached, the worker prints that.

    Args:
        bootstrap: that of ``WorkerStart``.
    """
    try:
        return _serve(Bootstrap.of_json(bootstrap))
    except _ReportedError:
        return 1
    except PjrtError as error:
        print(f"pjrt worker: {printable(error.message)}", file=sys.stderr)
        return 1


def serve(bootstrap: Bootstrap) -> int:
    """Run a worker in this process, until its controller ends it or is gone; return the exit code.

    Raises:
        PjrtError: the controller cannot be reached, refuses the worker, or has another token; or the worker cannot
            start, which the controller learns, too.
    """
    try:
        return _serve(bootstrap)
    except _ReportedError as error:
        raise error.failure from error


class _ReportedError(Exception):
    """An error that the controller has learned."""

    def __init__(self, failure: PjrtError) -> None:
        super().__init__(failure.message)
        self.failure = failure


def _serve(bootstrap: Bootstrap) -> int:
    if bootstrap.parent:
        system.end_with(bootstrap.parent)
    os.environ.update(bootstrap.environment)
    try:
        os.chdir(bootstrap.working_directory or ".")
    except OSError as error:
        raise InvalidArgumentError(
            f"cannot change to the working_directory {bootstrap.working_directory!r}: {error.strerror}"
        ) from None
    ends: queue.SimpleQueue[str] = queue.SimpleQueue()
    is_ready = threading.Event()

    def end(reason: str) -> None:
        ends.put(reason)
        if not is_ready.is_set():  # the main thread may be in native code for minutes
            os._exit(0 if not reason else 1)
        timer = threading.Timer(_END_SECONDS, os._exit, (1,))  # the device may never come back
        timer.daemon = True
        timer.start()

    link = ControllerLink(bootstrap, end)
    try:
        with _work(link, end) as address:
            is_ready.set()
            link.report("serving", address=address)
            reason = ends.get()
    except Exception as error:
        failure = PjrtError.wrap(error)
        link.report("failed", code=failure.code.name, message=failure.message)
        link.close()
        raise _ReportedError(failure) from error
    link.close()
    if reason:
        print(f"pjrt worker: {printable(reason)}", file=sys.stderr)
    return 1 if reason else 0


def _work(link: ControllerLink, lost: Callable[[str], object]) -> contextlib.AbstractContextManager[str]:
    """Return the context in which this process serves what it is assigned; its value is the address."""
    if isinstance(link.assignment, InnerNodeAssignment):
        from pjrt.clusters.workers.inner_node import served_branch

        return served_branch(link, link.assignment)
    calls = ControllerCalls(link.report)
    link.on_message = functools.partial(_obey, calls)
    return _served(link, link.assignment, calls, lost)


def _obey(calls: ControllerCalls, message: Message) -> None:
    """Do what the controller asks of a worker that serves."""
    match message["type"]:
        case "start inner node":
            from pjrt.clusters.workers.inner_node import start_inner_node

            start_inner_node(message["bootstrap"])
        case "answer":
            calls.receive(message)


@contextlib.contextmanager
def _served(
    link: ControllerLink, assignment: Assignment, calls: ControllerCalls, lost: Callable[[str], object]
) -> Iterator[str]:
    """Serve the device while the block runs; yield the address.

    Args:
        link: the link to the controller.
        assignment: the worker's assignment.
        calls: the calls of functions of the controller.
        lost: is called with the reason when the controller, which leads the job, is lost.
    """
    from pjrt import remote
    from pjrt.clusters.host_calls import call_function
    from pjrt.clusters.workers.host_client import serving
    from pjrt.distributed import initialization
    from pjrt.plugins import registry

    link.report("state", state="joining the job")
    job = initialization.enter(assignment.job)
    job.on_end(lambda: None if job.failure is None else lost(job.failure.message))
    link.report("state", state=f"starting the device {assignment.device}")
    with contextlib.ExitStack() as stack:
        stack.callback(initialization.shutdown)
        client = stack.enter_context(registry.client(assignment.device, **assignment.options))
        stack.enter_context(serving(client, calls))
        files = stack.enter_context(server_files(assignment.certificate, assignment.key, assignment.client_ca))
        server = stack.enter_context(
            remote.serve(
                client,
                assignment.address or f"{bracketed(link.own_address)}:0",
                transfer_directory=assignment.transfer_directory or None,
                vet_programs=False,
                save_executables=True,
                allow_options=None,
                name=assignment.device,
                call_function=call_function,
                **files,
            )
        )
        server.on_idle(lambda: _end_later(lost))
        # A program that waits for an answer would hold up the end of the device.
        stack.callback(calls.close, UnavailableError("the controller has ended the cluster"))
        yield server.address


def _end_later(lost: Callable[[str], object]) -> None:
    """End the worker soon, because its only client is gone: at the end of a cluster, the controller does it first.

    gRPC's pings find that the client's host or network has failed. The other connections would be open for long.
    """
    timer = threading.Timer(_IDLE_SECONDS, lost, ("the connection of the controller has ended",))
    timer.daemon = True
    timer.start()
