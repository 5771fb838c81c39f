"""Faults of what a buffer answers, of its references, and of its end."""

from mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "buffer.element_type",
        "buffer.c",
        "  args->type = args->buffer->shape.type;\n",
        "  args->type = args->buffer->shape.type == PJRT_Buffer_Type_BF16 ? PJRT_Buffer_Type_F16 "
        ": args->buffer->shape.type;\n",
        "A buffer of BF16 answers that its elements are F16.",
    ),
    Mutant(
        "buffer.dimensions_shared",
        "buffer.c",
        "  args->dims = args->buffer->shape.dims;\n",
        "  static int64_t dims[MAX_RANK];\n"
        "  memcpy(dims, args->buffer->shape.dims, sizeof dims);\n"
        "  args->dims = dims;\n",
        "The dimensions of a buffer are overwritten when another buffer is asked.",
    ),
    Mutant(
        "buffer.layout_reversed",
        "buffer.c",
        "                .minor_to_major = args->buffer->shape.minor_to_major,\n",
        "                .minor_to_major = (int64_t[]){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},\n",
        "The layout of a buffer is reported from major to minor, in memory that ends with the call.",
    ),
    Mutant(
        "buffer.ready_event_before_data",
        "buffer.c",
        "completion_with(gone(args->buffer)) : completion_ref(args->buffer->defined);\n",
        "completion_with(gone(args->buffer)) : &completion_done;\n",
        "The ready event of a buffer is ready before the buffer, and never fails.",
    ),
    Mutant(
        "buffer.deleted_not_reported",
        "buffer.c",
        "  args->is_deleted = args->buffer->gone != NULL;\n",
        "  args->is_deleted = false;\n",
        "PJRT_Buffer_IsDeleted answers false for a deleted buffer.",
    ),
    Mutant(
        "buffer.delete_keeps_memory",
        "buffer.c",
        "  pthread_mutex_unlock(&buffer->mutex);\n  storage_unref(held);\n",
        "  pthread_mutex_unlock(&buffer->mutex);\n  (void)held;\n",
        "PJRT_Buffer_Delete and PJRT_Buffer_Destroy do not free the memory.",
    ),
    Mutant(
        "buffer.use_after_delete_crashes",
        "buffer.c",
        "  if (buffer->gone) {\n    error = gone(buffer);\n  } else {\n    *out = storage_ref(buffer->storage);\n",
        "  {\n    *out = storage_ref(buffer->storage);\n",
        "The process crashes when a deleted buffer is used.",
    ),
    Mutant(
        "reference.not_kept",
        "buffer.c",
        "  storage *held = buffer->external_references ? NULL : give_storage(buffer);",
        "  storage *held = give_storage(buffer);",
        "Deleting a buffer frees memory that an external reference still holds.",
    ),
    Mutant(
        "reference.decrease_at_zero",
        "buffer.c",
        '    error = error_make(INVALID, "Attempting to decrease reference on a buffer with zero reference count.");\n',
        "    error = NULL;\n",
        "PJRT_Buffer_DecreaseExternalReferenceCount accepts a buffer without references.",
    ),
    Mutant(
        "reference.donation_allowed",
        "buffer.c",
        "  } else if (buffer->external_references) {\n",
        "  } else if (buffer->external_references > 100) {\n",
        "A buffer with an external reference is donated, and its memory overwritten.",
    ),
)
