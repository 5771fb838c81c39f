"""Faults of compilation and of executables."""

from mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "compile.unknown_format_accepted",
        "program.c",
        "  if (!tiny && !mlir)\n",
        "  if (!tiny && format->size == 0)\n",
        "A program of an unknown format is compiled as if it had a known one.",
    ),
    Mutant(
        "compile.options_unchecked",
        "executable.c",
        "  return read_options(each->options, each->options_size, each);\n",
        "  error = read_options(each->options, each->options_size, each);\n"
        "  pjrt_error_release(error);\n"
        '  return error ? read_options("", 0, each) : NULL;\n',
        "Compile options that cannot be read are replaced by the default ones.",
    ),
    Mutant(
        "compile.assignment_ignored",
        "executable.c",
        "    PJRT_Device *device = core->has_assignment                           ? client_device",
        "    PJRT_Device *device = core->num_replicas > MAX_DEVICES               ? client_device",
        "The device assignment of the compile options is ignored.",
    ),
    Mutant(
        "executable.output_type",
        "executable.c",
        "    each->output_types[i] = of->type;\n",
        "    each->output_types[i] = each->outputs[0].shape.type;\n",
        "Each output has the element type of the first one.",
    ),
    Mutant(
        "executable.replicas_and_partitions",
        "executable.c",
        "  args->num_replicas = (size_t)args->executable->core->num_replicas;\n",
        "  args->num_replicas = (size_t)args->executable->core->num_partitions;\n",
        "PJRT_Executable_NumReplicas answers with the number of partitions.",
    ),
    Mutant(
        "executable.handle_without_reference",
        "executable.c",
        "  args->executable = executable_handle(executable_ref(args->loaded_executable->core));\n",
        "  args->executable = executable_handle(args->loaded_executable->core);\n",
        "The result of PJRT_LoadedExecutable_GetExecutable dies with the loaded executable.",
    ),
    Mutant(
        "serialize.loses_options",
        "executable.c",
        "kinds_of(args->client, kinds), &core);\n  if (error) return error;\n",
        "kinds_of(args->client, kinds), &core);\n"
        "  if (!error) core->has_assignment = core->is_portable = false;\n"
        '  if (!error) error = read_options("", 0, core);\n'
        "  if (error) return error;\n",
        "A serialized executable comes back without its compile options.",
    ),
    Mutant(
        "deserialize.cut_bytes_crash",
        "executable.c",
        '  return is_whole ? NULL : damaged("it is cut short',
        '  if (!is_whole) abort();\n  return is_whole ? NULL : damaged("it is cut short',
        "The process ends when a serialized executable is cut short.",
    ),
    Mutant(
        "loaded.delete_ignored",
        "executable.c",
        "  atomic_store(&args->executable->is_deleted, true);\n",
        "",
        "A deleted executable can still be executed, and answers that it is not deleted.",
    ),
)
