"""Faults of errors and of argument structs."""

from mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "error.code_always_unknown",
        "values.c",
        "  args->code = pjrt_error_code(args->error);\n",
        "  args->code = PJRT_Error_Code_UNKNOWN;\n",
        "Each error has the code UNKNOWN.",
    ),
    Mutant(
        "error.message_size_one_more",
        "api.c",
        "  pjrt_error_read(args->error, &args->message, &args->message_size);\n",
        "  pjrt_error_read(args->error, &args->message, &args->message_size);\n  ++args->message_size;\n",
        "The size of a message counts the zero byte behind it.",
    ),
    Mutant(
        "error.destroy_leaks",
        "api.c",
        "FIRST_STRUCT_SIZE) pjrt_error_release(args->error);\n",
        "FIRST_STRUCT_SIZE) (void)args;\n",
        "PJRT_Error_Destroy does not free the error.",
    ),
    Mutant(
        "error.payload_visited_twice",
        "values.c",
        "  pjrt_error_visit(args->error, args->visitor, args->user_arg);\n",
        "  pjrt_error_visit(args->error, args->visitor, args->user_arg);\n"
        "  pjrt_error_visit(args->error, args->visitor, args->user_arg);\n",
        "PJRT_Error_ForEachPayload calls the visitor twice for each payload.",
    ),
    Mutant(
        "struct_size.longer_refused",
        "faults.c",
        "  if (!atomic_load_explicit(&any_fault, memory_order_relaxed)) return NULL;\n"
        "  return take_fault(&returned[function]);\n",
        "  if (struct_size > expected_size)\n"
        '    return error_make(INVALID, "%s was given a struct of %zu bytes", names[function], struct_size);\n'
        "  if (!atomic_load_explicit(&any_fault, memory_order_relaxed)) return NULL;\n"
        "  return take_fault(&returned[function]);\n",
        "The struct of a newer caller, which is longer, is refused.",
    ),
    Mutant(
        "struct_size.ignored_by_memory_stats",
        "device.c",
        "  memset((char *)args + head, 0, args->struct_size - head);\n  if (!args->device->is_addressable)",
        "  memset((char *)args + head, 0, sizeof *args - head);\n  if (!args->device->is_addressable)",
        "PJRT_Device_MemoryStats writes behind the end of an older caller's struct, which is shorter.",
    ),
)
