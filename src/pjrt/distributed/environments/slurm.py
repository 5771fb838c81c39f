"""Slurm: the tasks of a step, which ``srun`` starts."""

from __future__ import annotations

import re

from pjrt.distributed.environments.environment import Environment, Place, port_of

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
