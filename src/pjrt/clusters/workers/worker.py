"""The worker: a process of the job, which is linked to the controller and serves its device to it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import queue
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pjrt
from pjrt import system
from pjrt.api.client import Client
from pjrt.api.device import AllocatorStats
from pjrt.api.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    PjrtError,
    StatusCode,
    UnauthenticatedError,
    UnavailableError,
)
from pjrt.api.printable import printable
from pjrt.clusters.calls import ControllerCalls, call_function
from pjrt.clusters.workers import handshake
from pjrt.clusters.workers.handshake import Assignment, Bootstrap, InnerNodeAssignment, bracketed, server_files
from pjrt.distributed import messages
from pjrt.distributed.messages import EventLoop, Message
from pjrt.distributed.settings import split_address

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
_CONNECT_SECONDS = 10.0


class ControllerLink:
    """The connection of a worker to its controller.

    Args:
        bootstrap: where the controller is.
        on_end: is called with the reason when the controller asks the worker to end, or is gone.

    Attributes:
        assignment: the worker's assignment.
        own_address: the address of this host on the way to the controller.
        on_message: is called with each further message of the controller, in the link's thread.

    Raises:
        DeadlineExceededError: no controller answers at the addresses.
        UnauthenticatedError: the controller has another token.
        PjrtError: the controller refuses the worker.
    """

    def __init__(self, bootstrap: Bootstrap, on_end: Callable[[str], object]) -> None:
        self._bootstrap = bootstrap
        self._on_end = on_end
        self._loop = EventLoop()
        self._writer: asyncio.StreamWriter | None = None
        self.own_address = ""
        self.on_message: Callable[[Message], object] = lambda message: None
        try:
            self.assignment = self._loop.run(self._begin())
        except BaseException:
            self._loop.stop()
            raise

    def report(self, kind: str, **fields: Any) -> None:
        """Report something to the controller."""
        self._loop.call(self._send, {"type": kind, **fields})

    def close(self) -> None:
        """Send what was reported, and close the connection."""
        with contextlib.suppress(PjrtError):
            self._loop.run(self._close(), 2)
        self._loop.stop()

    def _send(self, message: Message) -> None:
        if self._writer is not None:
            messages.send(self._writer, **message)

    async def _begin(self) -> Assignment | InnerNodeAssignment:
        deadline = time.monotonic() + self._bootstrap.timeout
        reader, writer = await self._connect(deadline)
        try:
            async with asyncio.timeout(max(0.1, deadline - time.monotonic())):
                assignment = await self._shake_hands(reader, writer)
        except BaseException as error:
            await messages.hang_up(writer)
            if isinstance(error, TimeoutError):
                raise DeadlineExceededError(
                    f"the program at {' or '.join(self._bootstrap.addresses)} has not answered a worker within "
                    f"{self._bootstrap.timeout:g} s; see whether it is a controller of a cluster"
                ) from None
            raise
        self._writer = writer
        self.own_address = str(writer.get_extra_info("sockname")[0])
        self._task = asyncio.create_task(self._listen(reader))
        return assignment

    async def _connect(self, deadline: float) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        pause, why = _FIRST_PAUSE, "no answer"
        while (left := deadline - time.monotonic()) > 0:
            for address in self._bootstrap.addresses:
                try:
                    async with asyncio.timeout(min(left, _CONNECT_SECONDS)):
                        return await asyncio.open_connection(
                            *split_address(address), limit=messages.MAX_BYTES, ssl=self._context()
                        )
                except ssl.SSLError as error:  # its number is none of the system's
                    why = str(error)
                except OSError as error:  # TimeoutError, too
                    why = os.strerror(error.errno) if error.errno else str(error) or "no answer"
            await asyncio.sleep(min(pause, max(0.0, deadline - time.monotonic())))
            pause = min(2 * pause, _LONGEST_PAUSE)
        raise DeadlineExceededError(
            f"no controller of a cluster answered within {self._bootstrap.timeout:g} s at "
            f"{' or '.join(self._bootstrap.addresses)} ({why}); see whether it runs, and whether this host can reach it"
        )

    def _context(self) -> ssl.SSLContext | None:
        if not self._bootstrap.encrypted:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE  # the handshake of the token checks the certificate
        return context

    async def _shake_hands(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Assignment | InnerNodeAssignment:
        encryption = writer.get_extra_info("ssl_object")
        certificate = b"" if encryption is None else encryption.getpeercert(binary_form=True)
        own_nonce, token = handshake.new_nonce(), self._bootstrap.token
        facts = {
            "index": self._bootstrap.index,
            "version": pjrt.__version__,
            "host": socket.gethostname(),
            "pid": os.getpid(),
        }
        messages.send(writer, type="worker", nonce=own_nonce, facts=facts)
        nonces = own_nonce, str(_expect(await messages.receive(reader), "challenge").get("nonce"))
        own_proof = handshake.proof(token, "worker", nonces, certificate, facts)
        messages.send(writer, type="proof", proof=own_proof)
        answer = _expect(await messages.receive(reader), "assignment")
        if not handshake.is_valid(
            answer.get("proof"), handshake.proof(token, "controller", nonces, certificate, facts)
        ):
            raise UnauthenticatedError(
                f"the controller at {' or '.join(self._bootstrap.addresses)} has not the token of this worker; give "
                "both the same one"
            )
        fields = answer["assignment"]
        return InnerNodeAssignment.read(fields) if "children" in fields else Assignment.read(fields)

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        while (message := await messages.receive(reader)) is not None:
            if message["type"] == "end":
                self._on_end("")
                return
            self.on_message(message)
        self._on_end("the controller is gone: its process ended, or its connection was lost")

    async def _close(self) -> None:
        self._task.cancel()
        if self._writer is not None:
            await messages.hang_up(self._writer)


def _expect(message: Message | None, kind: str) -> Message:
    if message is None:
        raise UnavailableError("the controller has closed the connection; see its output for the cause")
    if message.get("type") == "refused":
        raise PjrtError.of(StatusCode[message["code"]], message["message"])
    if message.get("type") != kind:
        raise FailedPreconditionError("the program at the controller's address is not a controller of this version")
    return message


_clients: list[tuple[Client, ControllerCalls]] = []


@contextlib.contextmanager
def serving(client: Client, calls: ControllerCalls) -> Iterator[None]:
    """Have ``host_client`` return a client while the block runs, and its programs make calls of the controller."""
    _clients.append((client, calls))
    try:
        yield
    finally:
        _clients.remove((client, calls))


def host_client() -> Client:
    """Return the client of the devices of this host: a function that runs in a worker calls it.

    Raises:
        FailedPreconditionError: this process is no worker of a cluster.
    """
    if not _clients:
        raise FailedPreconditionError(
            "this process is no worker of a cluster; call the function with call_on_hosts() of the cluster's client"
        )
    return _clients[-1][0]


def memory_stats(device_id: int) -> AllocatorStats:
    """Return the state of the allocator of a device of this host."""
    return host_client().lookup_device(device_id).memory_stats()


def clear_memory_stats(device_id: int) -> None:
    """Reset the peaks of ``memory_stats`` of a device of this host."""
    host_client().lookup_device(device_id).clear_memory_stats()


def register_ffi_handler(name: str, handler: Callable[..., Any], traits: int) -> None:
    """Register an FFI handler with the client of this host."""
    host_client().register_ffi_handler(name, handler, traits=traits)


def register_controller_handler(name: str, function: int, traits: int) -> None:
    """Register a function of the controller, given its number there, as an FFI handler with the client of this host."""
    client = host_client()
    _, calls = _clients[-1]
    client.register_ffi_handler(name, calls.handler(function), traits=traits)


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
                heartbeat_timeout=assignment.heartbeat_timeout,
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
