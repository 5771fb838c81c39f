"""Faults of extensions."""

from mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "layouts.default_of_client",
        "ext_layouts.c",
        "  return default_layout(args->type, args->dims, args->num_dims, &args->layout);\n}\n\n"
        "static PJRT_Error *topology_default",
        "  return default_layout(args->type, args->dims, args->num_dims ? args->num_dims - 1 : 0, &args->layout);\n"
        "}\n\n"
        "static PJRT_Error *topology_default",
        "The default layout of the extension Layouts lacks a dimension.",
    ),
    Mutant(
        "raw_buffer.offset_ignored",
        "ext_raw_buffer.c",
        "memcpy(device + each->offset, each->host, (size_t)each->size);",
        "memcpy(device, each->host, (size_t)each->size);",
        "A copy to the device of the extension RawBuffer ignores the offset.",
    ),
    Mutant(
        "memory_descriptions.default_index",
        "extensions.c",
        "  args->default_memory_index = 0;\n",
        "  args->default_memory_index = TINY_NUM_MEMORY_KINDS;\n",
        "The index of the default memory is behind the end of the list of the extension MemoryDescriptions.",
    ),
)
