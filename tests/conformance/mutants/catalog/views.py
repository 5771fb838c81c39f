"""Faults of buffers that are not filled from the host: views, aliases, failed and uninitialized ones."""

from mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "view.deleter_never_called",
        "buffer.c",
        "  if (each->on_free) each->on_free(each->on_free_data, each->on_free_arg);\n",
        "",
        "The callback of a view is never called.",
    ),
    Mutant(
        "view.deleter_called_twice",
        "buffer.c",
        "  if (each->on_free) each->on_free(each->on_free_data, each->on_free_arg);\n",
        "  if (each->on_free) each->on_free(each->on_free_data, each->on_free_arg);\n"
        "  if (each->on_free) each->on_free(each->on_free_data, each->on_free_arg);\n",
        "The callback of a view is called twice.",
    ),
    Mutant(
        "error_buffer.error_lost",
        "buffer.c",
        "storage_make(space, 0, 0), completion_with(held));",
        "storage_make(space, 0, 0), &completion_done);",
        "A buffer of PJRT_Client_CreateErrorBuffer is ready without the error.",
    ),
    Mutant(
        "alias.never_ready",
        "buffer.c",
        "    completion_then(args->buffer->defined, follow, defined);\n",
        "",
        "An alias that the caller fulfills with a buffer is never ready.",
    ),
)
