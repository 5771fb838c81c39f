"""Faults of sends and receives."""

from mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "send.error_ignored",
        "ops.c",
        "    if (error) return status_take(error);\n",
        "    if (error) status_unref(status_take(error));\n",
        "The error of a send callback is ignored.",
    ),
    Mutant(
        "stream.chunk_not_released",
        "stream.c",
        "  if (chunk->deleter) chunk->deleter(chunk->data, chunk->deleter_arg);\n",
        "",
        "The deleter of a chunk is never called.",
    ),
)
