"""The mutants, by noun."""

from mutants.catalog import (
    buffers,
    clients,
    copies,
    devices,
    errors,
    events,
    executables,
    executions,
    extensions,
    host_buffers,
    races,
    streams,
    topologies,
    transfers,
    views,
)
from mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    *errors.MUTANTS,
    *events.MUTANTS,
    *clients.MUTANTS,
    *devices.MUTANTS,
    *topologies.MUTANTS,
    *host_buffers.MUTANTS,
    *buffers.MUTANTS,
    *copies.MUTANTS,
    *views.MUTANTS,
    *transfers.MUTANTS,
    *executables.MUTANTS,
    *executions.MUTANTS,
    *streams.MUTANTS,
    *extensions.MUTANTS,
    *races.MUTANTS,
)
