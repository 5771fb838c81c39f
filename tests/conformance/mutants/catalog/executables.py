"""Faults of compilation and of executables."""

from mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "compile.unknown_format_accepted",
        "executable.c",
        "  if (!tiny && !mlir)\n",
        "  if (!tiny && program->format_size == 0)\n",
        "A program of an unknown format is compiled as if it had a known one.",
    ),
    Mutant(
        "compile.options_unchecked",
        "executable.c",
        "  if (!status) status = compile_options_parse(options, options_size, &compile_options);\n",
        "  if (!status) status = compile_options_parse(options, options_size, &compile_options);\n"
        '  if (status) status_unref(status), status = compile_options_parse("", 0, &compile_options);\n',
        "Compile options that cannot be read are replaced by the default ones.",
    ),
    Mutant(
        "compile.assignment_ignored",
        "loaded.c",
        "    int64_t id = options->has_assignment ? options->assignment[i] : i;\n",
        "    int64_t id = i;\n",
        "The device assignment of the compile options is ignored.",
    ),
    Mutant(
        "executable.output_type",
        "executable.c",
        "    executable->output_types[i] = shape->type;\n",
        "    executable->output_types[i] = program->values[program->outputs[0].value].shape.type;\n",
        "Each output has the element type of the first one.",
    ),
    Mutant(
        "executable.replicas_and_partitions",
        "executable.c",
        "  args->num_replicas = (size_t)args->executable->core->options.num_replicas;\n",
        "  args->num_replicas = (size_t)args->executable->core->options.num_partitions;\n",
        "PJRT_Executable_NumReplicas answers with the number of partitions.",
    ),
    Mutant(
        "executable.handle_without_reference",
        "loaded.c",
        "  args->executable = executable_handle(executable_ref(args->loaded_executable->core));\n",
        "  args->executable = executable_handle(args->loaded_executable->core);\n",
        "The result of PJRT_LoadedExecutable_GetExecutable dies with the loaded executable.",
    ),
    Mutant(
        "serialize.loses_options",
        "executable.c",
        "  uint64_t sizes[2] = {executable->options_size, strlen(executable->program->source)};\n",
        "  uint64_t sizes[2] = {0, strlen(executable->program->source)};\n"
        "  bytes_add(out, SERIAL_MARK, strlen(SERIAL_MARK));\n  bytes_add(out, sizes, sizeof sizes);\n"
        "  bytes_add(out, executable->program->source, (size_t)sizes[1]);\n  return;\n",
        "A serialized executable comes back without its compile options.",
    ),
    Mutant(
        "deserialize.cut_bytes_crash",
        "executable.c",
        "  if (sizes[0] > size - head || sizes[1] != size - head - sizes[0])\n",
        "  if (sizes[0] > size - head || sizes[1] != size - head - sizes[0]) abort();\n  if (sizes[0] > size - head)\n",
        "The process ends when a serialized executable is cut short.",
    ),
    Mutant(
        "loaded.delete_ignored",
        "loaded.c",
        "  atomic_store(&args->executable->deleted, true);\n",
        "",
        "A deleted executable can still be executed, and answers that it is not deleted.",
    ),
)
