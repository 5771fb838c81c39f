"""The environments that launchers make, and the place that they give to a process."""

from __future__ import annotations

import abc
import importlib
import json
import os
import re
import socket
import ssl
import urllib.error
import urllib.request
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError, UnavailableError

_FIRST_PORT = 61440
_PORTS = 4096  # from the first port to the last one that exists


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a process in a job, as far as its environment states it.

    Attributes:
        coordinator_address: the leader's address: ``HOST:PORT``.
        process_count: the number of processes.
        process_index: the number of this process.
    """

    coordinator_address: str | None
    process_count: int | None
    process_index: int | None


class Environment(abc.ABC):
    """An environment that a launcher makes.

    Args:
        variables: the environment variables.

    Attributes:
        name: the name by which users choose it.
    """

    name: str

    def __init__(self, variables: Mapping[str, str]) -> None:
        self.variables = variables

    @abc.abstractmethod
    def is_present(self) -> bool:
        """Whether this process was started so."""

    @abc.abstractmethod
    def place(self) -> Place:
        """Return the place of this process.

        Raises:
            InvalidArgumentError: a variable is missing, or has a wrong value.
        """

    def number(self, name: str) -> int:
        """Return the number in an environment variable that must be set."""
        text = self.variables.get(name, "")
        if not text.isdecimal():
            found = f"found {text!r}" if text else "it is not set"
            raise InvalidArgumentError(
                f"expected a number in the environment variable {name}, because this looks like a process of "
                f"{self.name}; {found}; start the program as {self.name} requires, or give initialize() all arguments"
            )
        return int(text)


def port_of(number: int) -> int:
    """Return a port that all processes of a job choose, from a number that other jobs of the host do not have."""
    return _FIRST_PORT + number % _PORTS


ADDRESS = "PJRT_COORDINATOR_ADDRESS"
COUNT = "PJRT_PROCESS_COUNT"
INDEX = "PJRT_PROCESS_INDEX"


class LaunchEnvironment(Environment):
    """The variables of this package: ``PJRT_COORDINATOR_ADDRESS``, ``PJRT_PROCESS_COUNT`` and ``PJRT_PROCESS_INDEX``.

    Those that are set alone complete the place that another environment gives.
    """

    name = "pjrt launch"

    def is_present(self) -> bool:
        """Whether the number of this process is set."""
        return INDEX in self.variables

    def place(self) -> Place:
        """Return the place of this process."""
        count = self.number(COUNT) if COUNT in self.variables else None
        index = self.number(INDEX) if INDEX in self.variables else None
        return Place(self.variables.get(ADDRESS) or None, count, index)


_NODES = "SLURM_STEP_NODELIST"


class SlurmEnvironment(Environment):
    """A task of a Slurm step. A script of ``sbatch`` is none: it has to start the program with ``srun``."""

    name = "slurm"

    def is_present(self) -> bool:
        """Whether this is a task of a step."""
        return _NODES in self.variables and "SLURM_JOB_ID" in self.variables

    def place(self) -> Place:
        """Return the place of this task; the leader is on the first node of the step."""
        tasks = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in self.variables else "SLURM_NTASKS"
        step = self.variables.get("SLURM_STEP_ID", "0")
        port = port_of(self.number("SLURM_JOB_ID") + 101 * int(step if step.isdecimal() else 0))
        host = first_host(self.variables[_NODES])
        return Place(f"{host}:{port}", self.number(tasks), self.number("SLURM_PROCID"))


def first_host(nodes: str) -> str:
    """Return the first host of a list as Slurm writes it, such as ``rack[1-2]node[03,07-09],login``."""
    depth, end = 0, len(nodes)
    for position, character in enumerate(nodes):
        depth += (character == "[") - (character == "]")
        if character == "," and not depth:
            end = position
            break
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", nodes[:end])


_ORTE_URI = "OMPI_MCA_orte_hnp_uri"
_ORTE_JOBS = 4096  # the numbers of Open MPI's jobs are multiples of it
_NAMESPACE = "PMIX_NAMESPACE"


class OpenMpiEnvironment(Environment):
    """A process of Open MPI.

    Before version 5 the leader's host is the one where ``mpirun`` runs. Since then its address is known only if all
    processes are on one host.
    """

    name = "openmpi"

    def is_present(self) -> bool:
        """Whether Open MPI's launcher started this process."""
        return any(name.startswith("OMPI_COMM_WORLD_") for name in self.variables)

    def place(self) -> Place:
        """Return the place of this process."""
        count = self.number("OMPI_COMM_WORLD_SIZE")
        return Place(self._address(count), count, self.number("OMPI_COMM_WORLD_RANK"))

    def _address(self, count: int) -> str | None:
        uri = self.variables.get(_ORTE_URI, "")
        # Such as 1531576320.0;tcp://10.96.0.1,10.148.0.1:34911 or 1314521088.0;tcp6://[fe80::b9b,2620:10d::2]:43370
        match = re.match(r"(\d+)\.\d+;tcp(?:6://\[([^\],]+)|://([^,:]+))", uri)
        if match:
            host = f"[{match.group(2)}]" if match.group(2) else match.group(3)
            return f"{host}:{port_of(int(match.group(1)) // _ORTE_JOBS)}"
        if self.variables.get("OMPI_COMM_WORLD_LOCAL_SIZE") == str(count) and self.variables.get(_NAMESPACE):
            return f"127.0.0.1:{port_of(zlib.crc32(self.variables[_NAMESPACE].encode()))}"
        return None


class PmiEnvironment(Environment):
    """A process of Intel MPI or MPICH, or one that Slurm started with its PMI. It does not state the leader's host."""

    name = "pmi"

    def is_present(self) -> bool:
        """Whether a launcher with PMI started this process."""
        return "PMI_RANK" in self.variables or "PMI_SIZE" in self.variables

    def place(self) -> Place:
        """Return the place of this process."""
        return Place(None, self.number("PMI_SIZE"), self.number("PMI_RANK"))


class Mpi4pyEnvironment(Environment):
    """A process of any MPI, asked through the package mpi4py; only when the user chooses it, because it starts MPI."""

    name = "mpi4py"

    def is_present(self) -> bool:
        """Never by itself."""
        return False

    def place(self) -> Place:
        """Return the place of this process; process 0 sends its host and a free port to the others.

        Raises:
            FailedPreconditionError: mpi4py is not installed.
        """
        try:
            world = importlib.import_module("mpi4py.MPI").COMM_WORLD
        except ImportError as error:
            raise FailedPreconditionError(
                f"cluster_detection_method='mpi4py' needs mpi4py ({error}): pip install mpi4py"
            ) from None
        address = None
        if world.Get_rank() == 0:
            with socket.create_server(("", 0)) as probe:
                address = f"{socket.gethostname()}:{probe.getsockname()[1]}"
        return Place(world.bcast(address, root=0), world.Get_size(), world.Get_rank())


SCHEME = "https"
"""The protocol of the API server."""

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_PORT = 55527
_SECONDS = 10.0


class KubernetesEnvironment(Environment):
    """A pod of an Indexed Job.

    Its host name is ``JOB-INDEX``, and a headless service is its subdomain, so the leader is at ``JOB-0.SUBDOMAIN``.
    The number of pods is in ``PJRT_PROCESS_COUNT``, or is asked from the API server, which the pod's service account
    must allow (``get`` of ``jobs``).

    Args:
        variables: the environment variables.
        host: the pod's whole host name; that of this host by default.
        account: the folder with the service account's token.
    """

    name = "kubernetes"

    def __init__(self, variables: Mapping[str, str], host: str | None = None, account: Path = _ACCOUNT) -> None:
        super().__init__(variables)
        self._host = host
        self._account = account

    def is_present(self) -> bool:
        """Whether this is a pod of an Indexed Job."""
        return "KUBERNETES_SERVICE_HOST" in self.variables and "JOB_COMPLETION_INDEX" in self.variables

    def place(self) -> Place:
        """Return the place of this pod."""
        index = self.number("JOB_COMPLETION_INDEX")
        short, _, domain = (self._host or socket.getfqdn()).partition(".")
        job = short.removesuffix(f"-{index}")
        if job == short or not domain:
            raise InvalidArgumentError(
                f"expected a pod with the host name JOB-{index} in a subdomain, found {short!r} in {domain!r}; create "
                "a headless service, and name it as 'subdomain' of the job's pod template"
            )
        count = self.number(COUNT) if COUNT in self.variables else self._ask_count(job)
        return Place(f"{job}-0.{domain}:{_PORT}", count, index)

    def _ask_count(self, job: str) -> int:
        try:
            namespace = (self._account / "namespace").read_text().strip()
            answer = self._ask(f"/apis/batch/v1/namespaces/{namespace}/jobs/{job}")
            return int(answer["spec"]["completions"])
        except urllib.error.HTTPError as error:
            reason = f"the API server refused it ({error.code} {error.reason})"
        except (OSError, KeyError, TypeError, ValueError) as error:
            reason = str(error)
        raise UnavailableError(
            f"the number of pods of the job {job!r} could not be read: {reason}; set {COUNT} in the job's pod "
            "template, or let its service account 'get' 'jobs'"
        )

    def _ask(self, path: str) -> Any:
        host, port = self.variables["KUBERNETES_SERVICE_HOST"], self.variables.get("KUBERNETES_SERVICE_PORT", "443")
        token = (self._account / "token").read_text().strip()
        request = urllib.request.Request(
            f"{SCHEME}://{f'[{host}]' if ':' in host else host}:{port}{path}",
            headers={"Authorization": f"Bearer {token}"},
        )
        trust = ssl.create_default_context(cafile=str(self._account / "ca.crt")) if SCHEME == "https" else None
        with urllib.request.urlopen(request, timeout=_SECONDS, context=trust) as answer:
            return json.load(answer)


ENVIRONMENTS: Sequence[type[Environment]] = (
    LaunchEnvironment,
    OpenMpiEnvironment,
    PmiEnvironment,
    SlurmEnvironment,
    KubernetesEnvironment,
    Mpi4pyEnvironment,
)
"""All environments. One that starts the processes of another comes after it: ``mpirun`` runs in a Slurm job."""

DEACTIVATE = "deactivate"
"""The name by which users switch the detection off."""

_INNERMOST = ("pjrt launch", "openmpi")


def detect(
    coordinator_address: str | None = None,
    process_count: int | None = None,
    process_index: int | None = None,
    method: str | None = None,
    variables: Mapping[str, str] | None = None,
) -> Place:
    """Return the place of this process in a job: what is given, completed from the environment.

    Args:
        coordinator_address: the leader's address, if it is given.
        process_count: the number of processes, if it is given.
        process_index: the number of this process, if it is given.
        method: the name of an environment, or ``deactivate``; by default the innermost one is taken.
        variables: the environment variables; those of this process by default.

    Raises:
        InvalidArgumentError: variables are missing, wrong, or contradict one another.
        FailedPreconditionError: there is no environment, or it does not state all that is not given.
    """
    variables = os.environ if variables is None else variables
    place = Place(coordinator_address, process_count, process_index)
    found = "no known environment was found"
    if None in (coordinator_address, process_count, process_index) and method != DEACTIVATE:
        environment = _choose(method, [known(variables) for known in ENVIRONMENTS])
        if environment is not None:
            found = f"the environment is of {environment.name}"
            place = _complete(place, environment.place())
        place = _complete(place, Place(variables.get(ADDRESS) or None, None, None))
    missing = [
        name
        for name, value in (
            ("coordinator_address", place.coordinator_address),
            ("num_processes", place.process_count),
            ("process_id", place.process_index),
        )
        if value is None
    ]
    if missing:
        hint = ""
        if "SLURM_JOB_ID" in variables and "SLURM_STEP_NODELIST" not in variables:
            hint = "; in a Slurm job, start the program with srun"
        raise FailedPreconditionError(
            f"expected {', '.join(missing)} as arguments of initialize() or from the environment; {found}{hint}; pass "
            f"the arguments, set {ADDRESS} for the address, or start the program with 'pjrt launch', srun or mpirun"
        )
    return place


def _choose(method: str | None, environments: Sequence[Environment]) -> Environment | None:
    if method is not None:
        for environment in environments:
            if environment.name == method:
                return environment
        names = ", ".join(repr(environment.name) for environment in environments)
        raise InvalidArgumentError(
            f"expected one of {names} or {DEACTIVATE!r} as cluster_detection_method, found {method!r}"
        )
    present = [environment for environment in environments if environment.is_present()]
    if not present:
        return None
    first = present[0]
    if first.name in _INNERMOST:  # its variables are of this process alone, not inherited from an outer launcher
        return first
    place = first.place()
    for other in present[1:]:
        place_there = other.place()
        mine = place.process_count, place.process_index
        theirs = place_there.process_count, place_there.process_index
        if mine != theirs:
            raise InvalidArgumentError(
                f"the environment is of {first.name} (process {mine[1]} of {mine[0]}) and of {other.name} (process "
                f"{theirs[1]} of {theirs[0]}); pass cluster_detection_method={first.name!r} or {other.name!r}"
            )
        if place.coordinator_address is None:
            first = other  # it states the same, and the address
    return first


def _complete(place: Place, further: Place) -> Place:
    return Place(
        place.coordinator_address or further.coordinator_address,
        further.process_count if place.process_count is None else place.process_count,
        further.process_index if place.process_index is None else place.process_index,
    )
