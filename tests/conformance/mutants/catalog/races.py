"""Faults that show with several threads."""

from mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "race.wakes_one_waiter",
        "event.c",
        "  pthread_cond_broadcast(&each->changed);\n  pthread_mutex_unlock(&each->mutex);\n  while (callbacks)",
        "  pthread_cond_signal(&each->changed);\n  pthread_mutex_unlock(&each->mutex);\n  while (callbacks)",
        "Of several threads that wait for an event only one wakes up.",
    ),
    Mutant(
        "race.uses_not_atomic",
        "buffer.c",
        "  pthread_mutex_lock(&buffer->mutex);\n  if (buffer->gone) {\n    error = gone(buffer);\n  } else {\n"
        "    *out = storage_ref(buffer->storage);\n"
        "    atomic_fetch_add(&buffer->storage->readers, 1);\n  }\n  pthread_mutex_unlock(&buffer->mutex);\n",
        "  if (buffer->gone) {\n    error = gone(buffer);\n  } else {\n"
        "    int refs = atomic_load(&buffer->storage->refs);\n    for (volatile int i = 0; i < 20000; ++i) continue;\n"
        "    atomic_store(&buffer->storage->refs, refs + 1);\n    *out = buffer->storage;\n"
        "    atomic_fetch_add(&buffer->storage->readers, 1);\n  }\n",
        "When threads use one buffer at the same time, references to its memory are lost.",
    ),
    Mutant(
        "race.references_not_atomic",
        "buffer.c",
        "  else ++args->buffer->external_references; /* until they are given back it is not donated */\n"
        "  pthread_mutex_unlock(&args->buffer->mutex);\n",
        "  pthread_mutex_unlock(&args->buffer->mutex);\n"
        "  if (!error) {\n"
        "    int64_t count = *(volatile int64_t *)&args->buffer->external_references;\n"
        "    for (volatile int i = 0; i < 1000; ++i) continue;\n"
        "    *(volatile int64_t *)&args->buffer->external_references = count + 1;\n"
        "  }\n",
        "External references that threads take at the same time are lost.",
    ),
    Mutant(
        "event.is_ready_hangs",
        "event.c",
        "  args->is_ready = completion_is_set(args->event->of);\n",
        "  static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;\n"
        "  pthread_mutex_lock(&mutex);\n"
        "  args->is_ready = completion_is_set(args->event->of);\n"
        "  if (!args->is_ready) return NULL;\n"
        "  pthread_mutex_unlock(&mutex);\n",
        "The second question whether an event is ready hangs after one that was answered with no.",
    ),
)
