"""The launcher ``local``: workers are subprocesses on this machine."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from pjrt.api.errors import FailedPreconditionError
from pjrt.clusters.launchers.launcher import Launcher, WorkerHandle, WorkerStart
from pjrt.clusters.launchers.worker_subprocess import WorkerSubprocess
from pjrt.system.python_process import module_command, module_environment

_MODULE = "pjrt.clusters.workers"


class LocalLauncher(Launcher):
    """Subprocesses on this machine, each of which stands for a host."""

    name = "local"
    is_local = True

    def __init__(self, hosts: int | Sequence[str], options: Mapping[str, Any]) -> None:
        super().__init__([f"local{index}" for index in range(hosts)] if isinstance(hosts, int) else hosts, options)
        self._is_closed = threading.Event()
        self._handles: Future[Sequence[WorkerHandle]] = Future()

    def start(self, starts: Sequence[WorkerStart]) -> Sequence[WorkerHandle]:
        if not sys.executable:
            raise FailedPreconditionError(
                "there is no Python program to start workers with (sys.executable is empty, as in some programs that "
                "embed Python)"
            )
        # The system ends the workers with the thread that has started them, so that this is not the caller's.
        self._handles.set_running_or_notify_cancel()
        threading.Thread(target=self._keep, args=(starts,), name="pjrt-cluster-launcher", daemon=True).start()
        return self._handles.result()

    def _keep(self, starts: Sequence[WorkerStart]) -> None:
        try:
            self._handles.set_result(_start_all(starts))
        except BaseException as error:
            self._handles.set_exception(error)
        self._is_closed.wait()

    def close(self) -> None:
        # Ctrl-C may have ended the wait for the handles, so that nobody else has them.
        if self._handles.running() or self._handles.done():
            with contextlib.suppress(Exception):
                for handle in self._handles.result():
                    handle.kill()
        self._is_closed.set()


def _start_all(starts: Sequence[WorkerStart]) -> Sequence[WorkerHandle]:
    handles: list[WorkerHandle] = []
    try:
        handles.extend(map(start_here, starts))
    except BaseException:
        for handle in handles:
            handle.kill()
        raise
    return handles


def start_here(start: WorkerStart) -> WorkerSubprocess:
    """Start a worker as a subprocess of this process, with its Python and its modules.

    The thread that calls this must live as long as the worker may: the system ends the worker with the thread.
    """
    environment = module_environment() | {"PYTHONUNBUFFERED": "1"} | dict(start.environment)
    return WorkerSubprocess(start, module_command(_MODULE), environment, start.working_directory)
