"""The detection of the environment that a launcher made."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError
from pjrt.distributed.environments.environment import Environment, Place
from pjrt.distributed.environments.kubernetes import KubernetesEnvironment
from pjrt.distributed.environments.launch import ADDRESS, LaunchEnvironment
from pjrt.distributed.environments.mpi import Mpi4pyEnvironment, OpenMpiEnvironment, PmiEnvironment
from pjrt.distributed.environments.slurm import SlurmEnvironment

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
