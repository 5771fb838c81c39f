"""Faults that show with several threads."""

from mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "race.wakes_one_waiter",
        "event.c",
        "  pthread_cond_broadcast(&promise->changed);\n",
        "  pthread_cond_signal(&promise->changed);\n",
        "Of several threads that wait for an event only one wakes up.",
    ),
    Mutant(
        "race.uses_not_locked",
        "buffer.c",
        "  tiny_status *status = NULL;\n  pthread_mutex_lock(&buffer->mutex);\n  if (buffer->gone) {\n"
        "    status = gone(buffer);\n  } else {\n    *out = storage_ref(buffer->storage);\n"
        "    if (use) note_use(buffer, use);\n  }\n  pthread_mutex_unlock(&buffer->mutex);\n",
        "  tiny_status *status = NULL;\n  if (buffer->gone) {\n"
        "    status = gone(buffer);\n  } else {\n    *out = storage_ref(buffer->storage);\n"
        "    if (use) note_use(buffer, use);\n  }\n",
        "Threads that use one buffer at the same time damage the list of its uses.",
    ),
    Mutant(
        "race.references_not_atomic",
        "buffer.c",
        "  else ++args->buffer->external_refs;\n  pthread_mutex_unlock(&args->buffer->mutex);\n",
        "  pthread_mutex_unlock(&args->buffer->mutex);\n  if (!status) {\n"
        "    int64_t count = *(volatile int64_t *)&args->buffer->external_refs;\n"
        "    for (volatile int i = 0; i < 1000; ++i) continue;\n"
        "    *(volatile int64_t *)&args->buffer->external_refs = count + 1;\n  }\n",
        "External references that threads take at the same time are lost.",
    ),
    Mutant(
        "event.is_ready_hangs",
        "event.c",
        "  args->is_ready = promise_is_ready(args->event->promise);\n",
        "  static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;\n  pthread_mutex_lock(&mutex);\n"
        "  args->is_ready = promise_is_ready(args->event->promise);\n"
        "  if (!args->is_ready) return NULL;\n  pthread_mutex_unlock(&mutex);\n",
        "The second question whether an event is ready hangs after one that was answered with no.",
    ),
)
