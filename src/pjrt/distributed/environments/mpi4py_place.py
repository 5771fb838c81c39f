"""The place of a process among those of MPI, through mpi4py."""

from __future__ import annotations

import importlib
import socket

from pjrt.api.errors import FailedPreconditionError
from pjrt.distributed.environments.environment import Place


def place() -> Place:
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
