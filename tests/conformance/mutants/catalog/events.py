"""Faults of events."""

from mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "event.ready_at_once",
        "event.c",
        "  args->is_ready = promise_is_ready(args->event->promise);\n",
        "  args->is_ready = true;\n",
        "PJRT_Event_IsReady answers true before the event is ready.",
    ),
    Mutant(
        "event.await_loses_error",
        "event.c",
        "  return error_from(status_ref(promise_wait(args->event->promise)));\n",
        "  promise_wait(args->event->promise);\n  return NULL;\n",
        "PJRT_Event_Await returns no error for an event that failed.",
    ),
    Mutant(
        "event.on_ready_loses_error_when_ready",
        "event.c",
        "  pthread_mutex_unlock(&promise->mutex);\n  fn(promise->status, arg);\n",
        "  pthread_mutex_unlock(&promise->mutex);\n  fn(NULL, arg);\n",
        "A callback that is registered on an event that failed already gets no error.",
    ),
    Mutant(
        "event.on_ready_never_when_ready",
        "event.c",
        "  promise_then(args->event->promise, call_on_ready, each);\n",
        "  if (!promise_is_ready(args->event->promise)) promise_then(args->event->promise, call_on_ready, each);\n",
        "A callback that is registered on a ready event is never called.",
    ),
    Mutant(
        "event.on_ready_twice",
        "event.c",
        "  each.callback(error_from(status_ref(borrowed)), each.user_arg);\n",
        "  each.callback(error_from(status_ref(borrowed)), each.user_arg);\n"
        "  each.callback(error_from(status_ref(borrowed)), each.user_arg);\n",
        "A callback is called twice.",
    ),
    Mutant(
        "event.destroyed_pending_fails",
        "event.c",
        "  if (event->settable)\n    promise_set(",
        "  if (!promise_is_ready(event->promise))\n    promise_set(",
        "When an event is destroyed before it is ready, the work that it stands for fails.",
    ),
    Mutant(
        "event.destroy_leaks",
        "event.c",
        "  promise_unref(event->promise);\n  free(event);\n",
        "",
        "PJRT_Event_Destroy does not free the event.",
    ),
    Mutant(
        "event.set_loses_error",
        "event.c",
        "  promise_set(args->event->promise, status_from_bytes(args->error_code, "
        "args->error_message, args->error_message_size));\n",
        "  promise_set(args->event->promise, NULL);\n",
        "PJRT_Event_Set with an error makes the event ready without one.",
    ),
)
