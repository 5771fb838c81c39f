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
        "  args->memory = args->device->space_handles[0];\n",
        "  args->memory = args->device->client->devices[0].space_handles[0];\n",
        "The default memory of each device is that of the first one.",
    ),
    Mutant(
        "device.memory_stats_flags_unset",
        "device.c",
        "  memset((char *)args + head, 0, args->struct_size - head);\n  if (!args->device->is_addressable)",
        "  if (!args->device->is_addressable)",
        "The flags of statistics that the device does not have keep what the caller's memory held.",
    ),
    Mutant(
        "device.memory_stats_never_shrink",
        "buffer.c",
        "  space->in_use -= (int64_t)size;\n",
        "",
        "The bytes in use do not become less when a buffer is destroyed.",
    ),
    Mutant(
        "memory.addressable_by_first_device",
        "device.c",
        "  args->devices = &device->client->device_handles[device->number];\n",
        "  args->devices = &device->client->device_handles[0];\n",
        "Each memory is addressable by the first device.",
    ),
    Mutant(
        "memory.same_id",
        "client.c",
        "  space->id = id;\n",
        "  space->id = (int)kind;\n",
        "Memories of different devices have the same id.",
    ),
)
