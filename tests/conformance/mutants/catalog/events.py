"""Faults of events."""

from mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "event.ready_at_once",
        "event.c",
        "  args->is_ready = completion_is_set(args->event->of);\n",
        "  args->is_ready = true;\n",
        "PJRT_Event_IsReady answers true before the event is ready.",
    ),
    Mutant(
        "event.await_loses_error",
        "event.c",
        "  look(of);\n  if (completion_is_set(of)) return pjrt_error_share(completion_error(of));\n",
        "  completion_wait(of);\n  if (completion_is_set(of)) return NULL;\n",
        "PJRT_Event_Await returns no error for an event that failed.",
    ),
    Mutant(
        "event.on_ready_loses_error_when_ready",
        "event.c",
        "  completion_then(args->event->of, call_on_ready, each);\n",
        "  if (completion_is_set(args->event->of)) call_on_ready(NULL, each);\n"
        "  else completion_then(args->event->of, call_on_ready, each);\n",
        "A callback that is registered on an event that failed already gets no error.",
    ),
    Mutant(
        "event.on_ready_never_when_ready",
        "event.c",
        "  completion_then(args->event->of, call_on_ready, each);\n",
        "  if (!completion_is_set(args->event->of)) completion_then(args->event->of, call_on_ready, each);\n",
        "A callback that is registered on a ready event is never called.",
    ),
    Mutant(
        "event.on_ready_twice",
        "table.c",
        "  each.function(error_shown(error), each.user_arg);\n",
        "  each.function(error_shown(pjrt_error_share(error)), each.user_arg);\n"
        "  each.function(error_shown(error), each.user_arg);\n",
        "A callback is called twice.",
    ),
    Mutant(
        "event.destroyed_pending_fails",
        "event.c",
        "  if (event->is_settable)\n    completion_set(",
        "  if (!completion_is_set(event->of))\n    completion_set(",
        "When an event is destroyed before it is ready, the work that it stands for fails.",
    ),
    Mutant(
        "event.destroy_leaks",
        "event.c",
        "  completion_unref(event->of);\n  free(event);\n",
        "",
        "PJRT_Event_Destroy does not free the event.",
    ),
    Mutant(
        "event.set_loses_error",
        "event.c",
        "error_from_parts(args->error_code, args->error_message, args->error_message_size));\n",
        "NULL);\n",
        "PJRT_Event_Set with an error makes the event ready without one.",
    ),
)
