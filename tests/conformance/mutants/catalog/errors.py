"""Faults of errors and of argument structs."""

from mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "error.code_always_unknown",
        "status.c",
        "static PJRT_Error_Code table_code(const PJRT_Error *error) { return status_code(inside(error)); }",
        "static PJRT_Error_Code table_code(const PJRT_Error *error) { (void)error; return PJRT_Error_Code_UNKNOWN; }",
        "Each error has the code UNKNOWN.",
    ),
    Mutant(
        "error.message_size_one_more",
        "status.c",
        "  table_message(args->error, &args->message, &args->message_size);\n",
        "  table_message(args->error, &args->message, &args->message_size);\n  ++args->message_size;\n",
        "The size of a message counts the zero byte behind it.",
    ),
    Mutant(
        "error.destroy_leaks",
        "status.c",
        "  status_unref(inside(error));\n  free(error);\n",
        "",
        "PJRT_Error_Destroy does not free the error.",
    ),
    Mutant(
        "error.payload_visited_twice",
        "status.c",
        "    visitor(each->key, each->key_size, each->value, each->value_size, user_arg);\n",
        "    visitor(each->key, each->key_size, each->value, each->value_size, user_arg);\n"
        "    visitor(each->key, each->key_size, each->value, each->value_size, user_arg);\n",
        "PJRT_Error_ForEachPayload calls the visitor twice for each payload.",
    ),
    Mutant(
        "struct_size.longer_refused",
        "faults.c",
        "  if (!atomic_load_explicit(&any_fault, memory_order_relaxed)) return NULL;\n"
        "  return error_from(take_fault(&returned[function]));\n",
        "  if (struct_size > expected_size)\n"
        '    return error_make(INVALID, "%s was given a struct of %zu bytes", names[function], struct_size);\n'
        "  if (!atomic_load_explicit(&any_fault, memory_order_relaxed)) return NULL;\n"
        "  return error_from(take_fault(&returned[function]));\n",
        "The struct of a newer caller, which is longer, is refused.",
    ),
    Mutant(
        "struct_size.ignored_by_memory_stats",
        "device.c",
        "         args->struct_size - offsetof(PJRT_Device_MemoryStats_Args, bytes_in_use));\n",
        "         sizeof *args - offsetof(PJRT_Device_MemoryStats_Args, bytes_in_use));\n",
        "PJRT_Device_MemoryStats writes behind the end of an older caller's struct, which is shorter.",
    ),
)
