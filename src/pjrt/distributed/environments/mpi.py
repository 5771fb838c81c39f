"""MPI: the processes that ``mpirun`` or ``mpiexec`` starts, of Open MPI, and of Intel MPI and MPICH (PMI)."""

from __future__ import annotations

import re
import zlib

from pjrt.distributed.environments.environment import Environment, Place, port_of

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
        """Return the place of this process; process 0 tells the others its address."""
        from pjrt.distributed.environments.mpi4py_place import place

        return place()
