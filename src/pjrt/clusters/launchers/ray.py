"""The launcher ``ray``: workers on the nodes of a Ray cluster, where a placement group has reserved their resources."""

from __future__ import annotations

import contextlib
import importlib
import os
import queue
import re
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pjrt.api.checks import expect
from pjrt.api.errors import DeadlineExceededError, FailedPreconditionError, InvalidArgumentError, UnavailableError
from pjrt.clusters.launchers.launcher import (
    Launcher,
    WorkerHandle,
    WorkerOutput,
    WorkerStart,
    WorkerSubprocess,
    start_here,
)
from pjrt.clusters.workers.handshake import Bootstrap

_STRATEGIES = ("SPREAD", "STRICT_SPREAD", "PACK", "STRICT_PACK")
_TICK_SECONDS = 0.2
_ACTOR_TICK_SECONDS = 0.1
_KILL_SECONDS = 5.0
_NODE_SHARE = 0.001
"""The share of a node's own resource that keeps a bundle on this node; Ray gives each node a whole one."""


class RayLauncher(Launcher):
    """Workers that Ray places and watches; it is not on the path of an execution.

    Each worker has an actor, which starts it as a subprocess. Ray's own watch of processes and nodes ends the handle of
    a worker that is lost. A worker is not restarted: a new process cannot take the place of one in a running job.

    Args:
        hosts: the number of workers, or the names or addresses of the nodes for them, which may repeat.
        options: the launcher's options. ``address``: that of a Ray cluster; by default the one of this process, or else
            the one that Ray finds, or else a new one on this machine. ``cpus``, ``gpus`` and ``resources``: the amounts
            that each worker reserves, by default one CPU; ``resources`` is a dict, or a string such as ``TPU:4``.
            ``strategy``: Ray's placement strategy, by default ``SPREAD``. ``runtime_env``: Ray's runtime environment of
            the workers. ``placement_timeout``: the seconds in which Ray must have the resources, by default 60.

    Raises:
        InvalidArgumentError: an option is wrong.
        FailedPreconditionError: Ray is not installed.
    """

    name = "ray"
    option_names = ("address", "cpus", "gpus", "placement_timeout", "resources", "runtime_env", "strategy")

    def __init__(self, hosts: int | Sequence[str], options: Mapping[str, Any]) -> None:
        super().__init__(hosts, options)
        self._nodes = list(self.hosts)
        self.hosts = [node or f"ray{index}" for index, node in enumerate(self._nodes)]
        self._address = expect(options.get("address", ""), str, "the address of a Ray cluster as a string")
        amounts = {"CPU": options.get("cpus", 1), "GPU": options.get("gpus", 0), **_resources(options)}
        for resource, amount in amounts.items():
            if isinstance(amount, bool) or not isinstance(amount, (int, float)) or amount < 0:
                raise InvalidArgumentError(f"expected an amount of {resource} of at least 0, found {amount!r}")
        self._amounts = {resource: amount for resource, amount in amounts.items() if amount}
        self._strategy = options.get("strategy", "SPREAD")
        if self._strategy not in _STRATEGIES:
            raise InvalidArgumentError(
                f"expected a placement strategy of Ray, one of {', '.join(_STRATEGIES)}; found {self._strategy!r}"
            )
        self._runtime_env = dict(expect(options.get("runtime_env", {}), Mapping, "Ray's runtime_env as a mapping"))
        self._timeout = float(expect(options.get("placement_timeout", 60), (int, float), "a timeout in seconds"))
        try:
            self._ray: Any = importlib.import_module("ray")
        except ImportError as error:
            raise FailedPreconditionError(
                f"the launcher 'ray' needs the package ray ({error}): pip install 'pjrt[ray]'"
            ) from None
        self._handles: list[_RayHandle] = []
        self._group: Any = None
        self._began_ray = False
        self._watch: threading.Thread | None = None
        self._is_closed = threading.Event()

    def start(self, starts: Sequence[WorkerStart]) -> Sequence[WorkerHandle]:
        try:
            self._join_ray()
            self._reserve()
            self._start_all(starts)
        except BaseException:
            self.close()
            raise
        self._watch = threading.Thread(target=self._follow, name="pjrt-ray-watch", daemon=True)
        self._watch.start()
        return list(self._handles)

    def _join_ray(self) -> None:
        """Join a Ray cluster, or start one on this machine, unless this process is in one already."""
        ray = self._ray
        if ray.is_initialized():
            here = ray.get_runtime_context().gcs_address
            if self._address not in ("", "auto", here):
                raise FailedPreconditionError(
                    f"this process is in the Ray cluster {here} already, and not in {self._address!r}; call "
                    "ray.shutdown() before, or leave the option address out"
                )
            return
        quiet = {"log_to_driver": False, "logging_level": "ERROR"}
        try:
            ray.init(address=self._address or "auto", **quiet)
        except ConnectionError as error:
            if self._address or os.environ.get("RAY_ADDRESS"):
                raise UnavailableError(
                    f"no Ray cluster answers at {self._address or os.environ['RAY_ADDRESS']!r} ({error}); start one "
                    "with `ray start --head`, or leave the address out"
                ) from error
            # Virtual devices need no processors of their own, so a cluster of this machine alone has room for all.
            processors = max(os.cpu_count() or 1, -(-len(self._nodes) * self._amounts.get("CPU", 0) // 1))
            ray.init(num_cpus=int(processors), include_dashboard=False, **quiet)
        self._began_ray = True

    def _reserve(self) -> None:
        """Reserve the resources of all workers, and wait until Ray has them."""
        placing = importlib.import_module("ray.util.placement_group")
        bundles = [{**self._amounts, **self._on_node(node)} for node in self._nodes]
        self._group = placing.placement_group(bundles, strategy=self._strategy, name="pjrt cluster")
        if not self._group.wait(self._timeout):
            total, free = _amounts(self._ray.cluster_resources()), _amounts(self._ray.available_resources())
            raise DeadlineExceededError(
                f"Ray has not found a place for {len(bundles)} workers with {_amounts(bundles[0])} each "
                f"({self._strategy}) within {self._timeout:g} s; its nodes have {total}, of which {free or 'nothing'} "
                "is free; ask for less, or add nodes"
            )

    def _on_node(self, node: str) -> dict[str, float]:
        """Return the resource that keeps a bundle on a node, which has a name or an address; none for any node."""
        if not node:
            return {}
        alive = [each for each in self._ray.nodes() if each["Alive"]]
        for each in alive:
            if node in (each["NodeManagerHostname"], each["NodeManagerAddress"], each.get("NodeName")):
                return {f"node:{each['NodeManagerAddress']}": _NODE_SHARE}
        names = ", ".join(sorted(f"{each['NodeManagerHostname']} ({each['NodeManagerAddress']})" for each in alive))
        raise InvalidArgumentError(f"Ray has no node {node!r}; its nodes are {names}")

    def _start_all(self, starts: Sequence[WorkerStart]) -> None:
        """Start an actor in each bundle, and a worker in each actor."""
        scheduling = importlib.import_module("ray.util.scheduling_strategies")
        actor_class = self._ray.remote(RayActor)
        others = {name: amount for name, amount in self._amounts.items() if name not in ("CPU", "GPU")}
        actors = [
            actor_class.options(
                name=f"pjrt worker {start.index} of {self._group.id.hex()[:12]}",
                num_cpus=self._amounts.get("CPU", 0),
                num_gpus=self._amounts.get("GPU", 0),
                resources=others,
                runtime_env=self._runtime_env or None,
                max_restarts=0,
                max_concurrency=3,  # the worker runs in one thread, the others end it
                scheduling_strategy=scheduling.PlacementGroupSchedulingStrategy(self._group, start.index),
            ).remote()
            for start in starts
        ]
        try:
            names = self._ray.get([actor.host.remote() for actor in actors])
        except self._ray.exceptions.RayError as error:
            raise UnavailableError(
                f"Ray cannot start the actor of a worker: {_first_lines(error)}; install this package on each node"
            ) from error
        finally:
            self._handles = [_RayHandle(self._ray, actor, start) for actor, start in zip(actors, starts, strict=True)]
        self.hosts = [name if names.count(name) == 1 else f"{name}/{index}" for index, name in enumerate(names)]
        for handle, start in zip(self._handles, starts, strict=True):
            handle.run(self.hosts[start.index])

    def _follow(self) -> None:
        """Pass the output of all workers on until they have ended."""
        ray = self._ray
        running = {handle.output: handle for handle in self._handles}
        while running and not self._is_closed.is_set():
            try:
                ready, _ = ray.wait(list(running), timeout=_TICK_SECONDS, fetch_local=False)
            except Exception as error:  # Ray was shut down, or its head is gone
                for handle in running.values():
                    handle.lose(error)
                return
            for output in ready:
                if not running[output].take():
                    del running[output]

    def close(self) -> None:
        self._is_closed.set()
        if self._watch is not None and self._watch is not threading.current_thread():
            self._watch.join()
        for handle in self._handles:
            handle.release()
        group, self._group = self._group, None
        if group is not None and self._ray.is_initialized():
            with contextlib.suppress(Exception):  # the Ray cluster may be gone
                importlib.import_module("ray.util.placement_group").remove_placement_group(group)
        if self._began_ray:
            self._began_ray = False
            self._ray.shutdown()


@dataclass(eq=False)
class _RayHandle(WorkerHandle):
    """A worker behind an actor.

    Attributes:
        ray: the package.
        actor: the actor.
        start: the start of the worker.
        output: Ray's stream of what ``RayActor.run`` yields.
        status: how the worker ended.
    """

    ray: Any
    actor: Any
    start: WorkerStart
    output: Any = None
    status: str | None = None
    ended: threading.Event = field(default_factory=threading.Event)

    def run(self, host: str) -> None:
        """Start the worker."""
        start = self.start
        start.output.label = host
        run = self.actor.run.options(num_returns="streaming")
        self.output = run.remote(start.index, host, start.bootstrap, dict(start.environment), start.working_directory)

    def take(self) -> bool:
        """Take what the actor has yielded; return whether more may come."""
        try:
            item = self.ray.get(next(self.output))
        except Exception as error:
            self.lose(error)
            return False
        if isinstance(item, str):
            self._end(item)
            return False
        for line in item:
            self.start.output.write_line(line)
        return True

    def lose(self, error: Exception) -> None:
        """Take note that the actor is lost."""
        self._end(f"Ray has lost its actor: {_first_lines(error)}")

    def _end(self, status: str) -> None:
        self.status = self.status or status
        self.ended.set()

    def poll(self) -> str | None:
        return self.status

    def end(self) -> None:
        if self.status is None:
            with contextlib.suppress(self.ray.exceptions.RayError):
                self.actor.end.remote()

    def kill(self) -> None:
        if self.status is None:
            with contextlib.suppress(self.ray.exceptions.RayError):
                self.actor.kill.remote()
            if not self.ended.wait(_KILL_SECONDS):
                self.release()

    def release(self) -> None:
        """End the actor, and with it the worker."""
        with contextlib.suppress(Exception):  # Ray may be shut down, or the node gone
            self.ray.kill(self.actor)


class RayActor:
    """The actor of one worker; ``ray.remote`` makes an actor class of it.

    The worker is a subprocess, the same program as with other launchers, because a worker that crashes then leaves an
    actor that reports how it ended. The worker is killed when the actor ends.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._worker: WorkerSubprocess | None = None
        self._is_ended = False

    def host(self) -> str:
        """Return the name of the host."""
        return socket.gethostname()

    def run(
        self, index: int, host: str, bootstrap: bytes, environment: Mapping[str, str], working_directory: Path | None
    ) -> Iterator[list[str] | str]:
        """Run the worker until it ends; yield lists of lines of its output, and in the end how it ended.

        The thread that starts the worker must live as long as the worker: this one does. The bootstrap is an argument
        of this method, not of the constructor, whose arguments Ray keeps in its global store.
        """
        output = _QueuedOutput(host)
        line = replace(Bootstrap.of_json(bootstrap), parent=os.getpid()).to_json()
        with self._lock:
            if self._is_ended:
                yield "it was ended before it was started"
                return
            worker = self._worker = start_here(WorkerStart(index, host, line, environment, working_directory, output))
        while (status := worker.poll()) is None:
            if lines := output.take(_ACTOR_TICK_SECONDS):
                yield lines
        if lines := output.take(0):
            yield lines
        yield status

    def end(self) -> None:
        """Ask the worker to end."""
        with self._lock:
            self._is_ended = True
        if self._worker is not None:
            self._worker.end()

    def kill(self) -> None:
        """End the worker at once."""
        with self._lock:
            self._is_ended = True
        if self._worker is not None:
            self._worker.kill()


class _QueuedOutput(WorkerOutput):
    """Lines that wait for the next ``take``."""

    def __init__(self, label: str) -> None:
        super().__init__(label, shown=False)
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def write_line(self, line: str) -> None:
        self._lines.put(line)

    def take(self, timeout: float) -> list[str]:
        """Return all lines; wait for the first one, at most so many seconds."""
        lines = []
        try:
            lines.append(self._lines.get(timeout=timeout) if timeout else self._lines.get_nowait())
            while True:
                lines.append(self._lines.get_nowait())
        except queue.Empty:
            return lines


def _resources(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the option ``resources``: a mapping, or a string such as ``TPU:4,disk:1`` of a command line."""
    resources = options.get("resources", {})
    if isinstance(resources, Mapping):
        return dict(resources)
    amounts = re.findall(r"([^:,]+):([0-9.]+)(?:,|$)", str(resources))
    if not amounts or ",".join(map(":".join, amounts)) != resources:
        raise InvalidArgumentError(f"expected resources as a dict, or as a string such as 'TPU:4', found {resources!r}")
    return {name: float(amount) for name, amount in amounts}


def _amounts(resources: Mapping[str, float]) -> str:
    """Return the amounts of resources, human-readable, without those that Ray adds itself."""
    of_ray = re.compile("memory|:|_group_")  # those of placement groups have the groups' names
    return ", ".join(f"{amount:g} {name}" for name, amount in resources.items() if not of_ray.search(name))


def _first_lines(error: Exception) -> str:
    """Return what an error of Ray's says first, on one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:1] + [line for line in lines[1:] if line.startswith(("The actor", "ModuleNotFound"))])
