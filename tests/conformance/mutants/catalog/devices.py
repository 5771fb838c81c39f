"""Faults of devices and memories."""

from mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "device.description_of_first",
        "device.c",
        "  args->device_description = args->device->description;\n",
        "  args->device_description = args->device->client->devices[0].description;\n",
        "Each device has the description of the first one.",
    ),
    Mutant(
        "device.default_memory_of_first",
        "device.c",
        "  args->memory = args->device->memory_handles[0];\n",
        "  args->memory = args->device->client->local_handles[0]->memory_handles[0];\n",
        "The default memory of each device is that of the first one.",
    ),
    Mutant(
        "device.memory_stats_flags_unset",
        "device.c",
        "         args->struct_size - offsetof(PJRT_Device_MemoryStats_Args, bytes_in_use));\n",
        "         0);\n",
        "The flags of statistics that the device does not have keep what the caller's memory held.",
    ),
    Mutant(
        "device.memory_stats_never_shrink",
        "device.c",
        "  memory->device->bytes_in_use -= (int64_t)size;\n",
        "",
        "The bytes in use do not become less when a buffer is destroyed.",
    ),
    Mutant(
        "memory.addressable_by_first_device",
        "device.c",
        "  args->devices = &device->client->local_handles[device->local_id];\n",
        "  args->devices = &device->client->local_handles[0];\n",
        "Each memory is addressable by the first device.",
    ),
    Mutant(
        "memory.same_id",
        "client.c",
        "  memory->id = device->description->id * TINY_NUM_MEMORY_KINDS + kind;\n",
        "  memory->id = kind;\n",
        "Memories of different devices have the same id.",
    ),
)
