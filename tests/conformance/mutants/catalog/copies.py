"""Faults of copies from buffer to buffer."""

from mutants.mutant import Mutant

_COPY = (
    "  *out = buffer_make(memory, &buffer->shape, storage_ref(target), promise_ref(done));\n"
    "  copy_push(buffer->memory->device->queue, source, buffer->defined, target, buffer->size, done);\n"
)

MUTANTS = (
    Mutant(
        "copy.aliases_source",
        "buffer_copy.c",
        _COPY,
        "  storage_unref(target);\n"
        "  *out = buffer_make(memory, &buffer->shape, source, promise_ref(buffer->defined));\n"
        "  promise_set(done, NULL);\n  promise_unref(done);\n",
        "A copy shares the memory of its source, which a donation of the source overwrites.",
    ),
    Mutant(
        "copy.loses_error",
        "buffer_copy.c",
        "  promise_set(each->done, status);\n  promise_unref(each->done);\n  promise_unref(each->source_defined);\n",
        "  promise_set(each->done, NULL);\n  promise_unref(each->done);\n  promise_unref(each->source_defined);\n",
        "The copy of a failed buffer is ready without an error.",
    ),
    Mutant(
        "donate_with_dependency.does_not_wait",
        "buffer_copy.c",
        "storage, promise_ref(each->done));\n  tiny_promise *dependency",
        "storage, promise_ref(each->source_defined));\n  tiny_promise *dependency",
        "The result of PJRT_Buffer_DonateWithControlDependency does not wait for the dependency.",
    ),
)
