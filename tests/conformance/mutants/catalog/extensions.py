"""Faults of extensions."""

from mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "layouts.default_of_client",
        "extensions.c",
        "args->num_dims, args->client, &args->layout);\n",
        "args->num_dims ? args->num_dims - 1 : 0, args->client, &args->layout);\n",
        "The default layout of the extension Layouts lacks a dimension.",
    ),
    Mutant(
        "raw_buffer.offset_ignored",
        "extensions.c",
        "raw_copy_in(raw->storage, raw->defined, (size_t)args->offset, args->src",
        "raw_copy_in(raw->storage, raw->defined, 0, args->src",
        "A copy to the device of the extension RawBuffer ignores the offset.",
    ),
    Mutant(
        "memory_descriptions.default_index",
        "topology.c",
        "  args->default_memory_index = args->num_memory_descriptions ? 0 : SIZE_MAX;\n",
        "  args->default_memory_index = args->num_memory_descriptions;\n",
        "The index of the default memory is behind the end of the list of the extension MemoryDescriptions.",
    ),
)
