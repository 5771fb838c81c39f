"""Faults of buffers that are not filled from the host: views, aliases, failed and uninitialized ones."""

from mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "view.deleter_never_called",
        "storage.c",
        "  if (storage->on_free) storage->on_free(storage->data, storage->on_free_arg);\n",
        "",
        "The callback of a view is never called.",
    ),
    Mutant(
        "view.deleter_called_twice",
        "storage.c",
        "  if (storage->on_free) storage->on_free(storage->data, storage->on_free_arg);\n",
        "  if (storage->on_free) storage->on_free(storage->data, storage->on_free_arg);\n"
        "  if (storage->on_free) storage->on_free(storage->data, storage->on_free_arg);\n",
        "The callback of a view is called twice.",
    ),
    Mutant(
        "error_buffer.error_lost",
        "buffer_special.c",
        "storage_borrow(memory, NULL, 0), promise_done(error));\n",
        "storage_borrow(memory, NULL, 0), promise_done(NULL));\n",
        "A buffer of PJRT_Client_CreateErrorBuffer is ready without the error.",
    ),
    Mutant(
        "alias.never_ready",
        "buffer_special.c",
        "    promise_then(args->buffer->defined, follow, defined);\n",
        "",
        "An alias that the caller fulfills with a buffer is never ready.",
    ),
)
