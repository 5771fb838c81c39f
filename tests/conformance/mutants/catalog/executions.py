"""Faults of executions."""

from mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "execute.donated_stays_usable",
        "execute.c",
        "donates ? buffer_donate(buffer, &each->arguments[i]) : buffer_use(buffer, &each->arguments[i]);\n",
        "buffer_use(buffer, &each->arguments[i]);\n"
        "    if (!error && donates) atomic_fetch_sub(&each->arguments[i]->readers, 1);\n",
        "A donated argument can still be used, and its contents change.",
    ),
    Mutant(
        "execute.non_donatable_ignored",
        "execute.c",
        "    if (options->non_donatable_input_indices[i] == (int64_t)parameter) return false;\n",
        "    if (options->non_donatable_input_indices[i] == -1) return false;\n",
        "An argument that the caller excludes from donation is donated.",
    ),
    Mutant(
        "execute.outputs_in_wrong_order",
        "execute.c",
        "    args->output_lists[list][i] = buffer_make(",
        "    args->output_lists[list][core->num_outputs - 1 - i] = buffer_make(",
        "The outputs are returned in reverse order.",
    ),
    Mutant(
        "execute.complete_event_early",
        "execute.c",
        "args->device_complete_events[list] = event_make(done);\n",
        "args->device_complete_events[list] = event_make(&completion_done);\n",
        "The event of an execution is ready before the execution ends, and never fails.",
    ),
    Mutant(
        "execute.error_lost",
        "execute.c",
        "  launch_free(each);\n  completion_set(done, owned);\n",
        "  launch_free(each);\n  completion_set(done, NULL);\n",
        "The error of a failed execution is lost.",
    ),
    Mutant(
        "execute.failed_argument_ignored",
        "execute.c",
        "    if (completion_error(each->defined[i])) return pjrt_error_share(completion_error(each->defined[i]));\n",
        "    storage *it = each->arguments[i];\n"
        "    if (completion_error(each->defined[i]) && !it->memory) it->memory = (uintptr_t)calloc(1, 1 << 20);\n",
        "An execution with a failed argument succeeds.",
    ),
    Mutant(
        "execute.argument_shape_unchecked",
        "execute.c",
        "  if (!is_same && !stands_for_token(&buffer->shape, &expected->shape) && "
        "!stands_for_scalar(buffer, &expected->shape))\n",
        "  if (!is_same && buffer->shape.rank > MAX_RANK)\n",
        "An argument of the wrong shape is accepted.",
    ),
    Mutant(
        "execute.execute_device_ignored",
        "execute.c",
        "  PJRT_Device *device = args->execute_device ? args->execute_device : loaded->devices[list];\n",
        "  PJRT_Device *device = loaded->devices[list] ? loaded->devices[list] : &loaded->client->devices[0];\n",
        "execute_device is ignored.",
    ),
    Mutant(
        "execute.outputs_on_first_device",
        "execute.c",
        "buffer_make(&device->spaces[core->outputs[i].kind], &core->outputs[i].shape,\n",
        "buffer_make(&device->client->devices[0].spaces[core->outputs[i].kind], &core->outputs[i].shape,\n",
        "The outputs of each device are reported on the first one.",
    ),
    Mutant(
        "execute.arguments_of_first_device",
        "execute.c",
        "    PJRT_Buffer *buffer = args->argument_lists[list][i];\n    each->defined[i]",
        "    PJRT_Buffer *buffer = args->argument_lists[core->donated[i] ? list : 0][i];\n    each->defined[i]",
        "All devices compute with the arguments of the first one.",
    ),
    Mutant(
        "execute.output_leaks",
        "execute.c",
        "outputs[i] = storage_ref(each->outputs[i]);\n  if",
        "outputs[i] = storage_ref(storage_ref(each->outputs[i]));\n  if",
        "The memory of outputs is never freed.",
    ),
    Mutant(
        "execute.all_reduce_last_missing",
        "run.c",
        "  else arithmetic(OP_ADD, type, meeting->sum, meeting->sum, data, count);\n  if (++meeting->arrived",
        "  else if (meeting->arrived + 1 < meeting->participants)\n"
        "    arithmetic(OP_ADD, type, meeting->sum, meeting->sum, data, count);\n"
        "  if (++meeting->arrived",
        "A sum over devices lacks the part of one device.",
    ),
    Mutant(
        "execute.poison_lost",
        "execute.c",
        "    earliest->poison = pjrt_error_share(error);\n",
        "",
        "An execution that PJRT_Device_PoisonExecution poisoned succeeds.",
    ),
)
