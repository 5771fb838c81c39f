"""Faults of executions."""

from mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "execute.donated_stays_usable",
        "execute.c",
        "      status = buffer_donate(buffer, &launch->arguments[i], &more, &num_more);\n",
        "      status = buffer_use(buffer, launch->done, &launch->arguments[i]);\n",
        "A donated argument can still be used, and its contents change.",
    ),
    Mutant(
        "execute.non_donatable_ignored",
        "execute.c",
        "    aliased &= r->options->non_donatable_input_indices[i] != (int64_t)parameter;\n",
        "    aliased &= r->options->non_donatable_input_indices[i] != -1;\n",
        "An argument that the caller excludes from donation is donated.",
    ),
    Mutant(
        "execute.outputs_in_wrong_order",
        "execute.c",
        "    r->args->output_lists[list][i] =\n",
        "    r->args->output_lists[list][program->num_outputs - 1 - i] =\n",
        "The outputs are returned in reverse order.",
    ),
    Mutant(
        "execute.complete_event_early",
        "execute.c",
        "    r->args->device_complete_events[list] = event_make(launch->done, F_LoadedExecutable_Execute);\n",
        "    r->args->device_complete_events[list] = event_make(promise_done(NULL), F_LoadedExecutable_Execute);\n",
        "The event of an execution is ready before the execution ends, and never fails.",
    ),
    Mutant(
        "execute.error_lost",
        "execute.c",
        "  launch_free(launch);\n  promise_set(done, status);\n",
        "  launch_free(launch);\n  promise_set(done, NULL);\n",
        "The error of a failed execution is lost.",
    ),
    Mutant(
        "execute.failed_argument_ignored",
        "execute.c",
        "    status = status_ref(promise_status(launch->argument_defined[i]));\n",
        "    if (launch->arguments[i]->size == 0 && (launch->arguments[i]->data = calloc(1, 1 << 20))) continue;\n",
        "An execution with a failed argument succeeds.",
    ),
    Mutant(
        "execute.argument_shape_unchecked",
        "execute.c",
        "  if (!shape_same_dims(&buffer->shape, &program->values[i].shape) || !shape_is_row_major(&buffer->shape)) {\n",
        "  if (buffer->shape.rank > TINY_MAX_RANK) {\n",
        "An argument of the wrong shape is accepted.",
    ),
    Mutant(
        "execute.execute_device_ignored",
        "execute.c",
        "  launch->device = wanted ? wanted : r->loaded->local_devices[i];\n",
        "  launch->device = r->loaded->local_devices[i] ? r->loaded->local_devices[i] "
        ": r->loaded->client->local_handles[0];\n  wanted = launch->device;\n",
        "execute_device is ignored.",
    ),
    Mutant(
        "execute.outputs_on_first_device",
        "execute.c",
        "        buffer_make(&launch->device->memories[output->kind], &program->values[output->value].shape,\n",
        "        buffer_make(&launch->device->client->local_handles[0]->memories[output->kind], "
        "&program->values[output->value].shape,\n",
        "The outputs of each device are reported on the first one.",
    ),
    Mutant(
        "execute.arguments_of_first_device",
        "execute.c",
        "    PJRT_Buffer *buffer = r->args->argument_lists[list][i];\n    launch->argument_defined[i]",
        "    PJRT_Buffer *buffer = r->args->argument_lists[is_donated(r, i) ? list : 0][i];\n"
        "    launch->argument_defined[i]",
        "All devices compute with the arguments of the first one.",
    ),
    Mutant(
        "execute.output_leaks",
        "execute.c",
        "storage_ref(launch->outputs[i]), promise_ref(launch->done));\n",
        "storage_ref(storage_ref(launch->outputs[i])), promise_ref(launch->done));\n",
        "The memory of outputs is never freed.",
    ),
    Mutant(
        "execute.all_reduce_last_missing",
        "arithmetic.c",
        "  else arithmetic(OP_ADD, type, meeting->sum, meeting->sum, data, count);\n  if (++meeting->arrived",
        "  else if (meeting->arrived + 1 < meeting->participants)\n"
        "    arithmetic(OP_ADD, type, meeting->sum, meeting->sum, data, count);\n  if (++meeting->arrived",
        "A sum over devices lacks the part of one device.",
    ),
    Mutant(
        "execute.poison_lost",
        "execute.c",
        "  tiny_status *poison = status_ref(launch->poison);\n",
        "  tiny_status *poison = NULL;\n",
        "An execution that PJRT_Device_PoisonExecution poisoned succeeds.",
    ),
)
