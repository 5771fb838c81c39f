"""Faults of sends and receives."""

from mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "send.error_ignored",
        "run.c",
        "    sent += size;\n  }\n  return error;\n",
        "    sent += size;\n    pjrt_error_release(error);\n    error = NULL;\n  }\n  return error;\n",
        "The error of a send callback is ignored.",
    ),
    Mutant(
        "stream.chunk_not_released",
        "execute_options.c",
        "  if (chunk->deleter) chunk->deleter(chunk->data, chunk->deleter_arg);\n",
        "",
        "The deleter of a chunk is never called.",
    ),
)
