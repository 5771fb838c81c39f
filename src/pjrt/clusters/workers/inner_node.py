"""An inner node of a tree of controllers: it serves the devices of several workers as those of one."""

from __future__ import annotations

import contextlib
import functools
import subprocess
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pjrt.api.errors import PjrtError, StatusCode, UnavailableError
from pjrt.clusters.client.client import ClusterClient
from pjrt.clusters.client.member import Member, member_of, reason_of
from pjrt.clusters.workers.handshake import Child, InnerNodeAssignment, bracketed, server_files
from pjrt.distributed.messages import Message
from pjrt.system.python_process import module_command, module_environment

MODULE = "pjrt.clusters.workers"
_MOST_CONNECTING = 64


def start_inner_node(bootstrap: str) -> None:
    """Start an inner node on this host, as a process that outlives this one: it ends with its controller.

    Args:
        bootstrap: as that of ``WorkerStart``; it is the standard input of the inner node, because it has a secret.
    """
    process = subprocess.Popen(
        module_command(MODULE),
        stdin=subprocess.PIPE,
        env=module_environment() | {"PYTHONUNBUFFERED": "1"},
        start_new_session=True,  # the end of this worker does not end it
    )
    assert process.stdin is not None
    with process.stdin as pipe, contextlib.suppress(OSError):
        pipe.write(bootstrap.encode() + b"\n")


@contextlib.contextmanager
def served_branch(link: Any, assignment: InnerNodeAssignment) -> Iterator[str]:
    """Serve the devices of the children while the block runs; yield the address.

    Args:
        link: the link to the controller, as a ``ControllerLink``.
        assignment: the assignment.
    """
    from pjrt import remote

    link.report("state", state="connecting to the workers below")
    with contextlib.ExitStack() as stack:
        files = stack.enter_context(server_files(assignment.certificate, assignment.key, assignment.client_ca))
        connect = functools.partial(_connected, assignment, files)
        with ThreadPoolExecutor(min(_MOST_CONNECTING, len(assignment.children)), "pjrt-inner-node") as pool:
            members = list(pool.map(connect, assignment.children))
        client = stack.enter_context(ClusterClient(members))
        losses = _Losses(link, client, assignment.heartbeat_timeout)
        link.on_message = losses.receive
        for member in members:
            losses.watch(member)
        server = stack.enter_context(
            remote.serve(
                client,
                assignment.address or f"{bracketed(link.own_address)}:0",
                vet_programs=False,
                save_executables=True,
                allow_options=None,
                name="inner node",
                heartbeat_timeout=assignment.heartbeat_timeout,
                pass_on_call=client.pass_on_call,
                **files,
            )
        )
        yield server.address


def _connected(assignment: InnerNodeAssignment, files: Mapping[str, Any], child: Child) -> Member:
    from pjrt.remote.client.plugin import RemotePlugin

    own = {
        "ca_file": str(files.get("client_ca", "")),
        "certificate_file": str(files.get("tls_certificate", "")),
        "key_file": str(files.get("tls_key", "")),
        "token_file": "",
    }
    name = {"server_name": child.server_name} if child.server_name else {}
    client = RemotePlugin().client(address=child.address, heartbeat_timeout=assignment.heartbeat_timeout, **own, **name)
    return member_of(client, child.workers, is_inner_node=child.is_inner_node)


class _Losses:
    """The losses of workers below an inner node: those that it sees, and those that the controller reports."""

    def __init__(self, link: Any, client: ClusterClient, heartbeat_timeout: float) -> None:
        self._link = link
        self._heartbeat_timeout = heartbeat_timeout
        self._workers = {worker.process_index: worker for member in client.members for worker in member.workers}

    def watch(self, member: Member) -> None:
        """Report it to the controller when the connection to a member is lost."""
        member.client.connection.on_loss(functools.partial(self._lose, member))  # type: ignore[attr-defined]

    def _lose(self, member: Member, error: PjrtError) -> None:
        reason = reason_of(error, self._heartbeat_timeout)
        loss = UnavailableError(f"{member} was lost: {reason}")
        for worker in member.workers:
            worker.lose(loss)
            self._link.report("lost below", index=worker.process_index, reason=reason)
        member.lose(loss)

    def receive(self, message: Message) -> None:
        """Take a message of the controller."""
        worker = self._workers.get(message.get("index", -1)) if message["type"] == "lost" else None
        if worker is not None:
            worker.lose(PjrtError.of(StatusCode[message["code"]], message["message"]))
