"""Faults of copies from buffer to buffer."""

from mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "copy.aliases_source",
        "transfer.c",
        "  when_submitted(defined, buffer->space->device, submit_copy, each);\n"
        "  completion_unref(defined);\n"
        "  *out = buffer_make(space, &of, to, done);\n",
        "  completion_unref(done);\n"
        "  atomic_fetch_sub(&from->readers, 1);\n"
        "  *out = buffer_make(space, &buffer->shape, from, defined);\n",
        "A copy shares the memory of its source, which a donation of the source overwrites.",
    ),
    Mutant(
        "copy.loses_error",
        "transfer.c",
        "  storage_unref(each->to);\n  completion_set(each->done, error);\n",
        "  storage_unref(each->to);\n  completion_set(each->done, NULL);\n",
        "The copy of a failed buffer is ready without an error.",
    ),
    Mutant(
        "donate_with_dependency.does_not_wait",
        "buffer.c",
        "&args->buffer->shape, held, completion_ref(each->done));\n",
        "&args->buffer->shape, held, completion_ref(each->source));\n",
        "The result of PJRT_Buffer_DonateWithControlDependency does not wait for the dependency.",
    ),
)
