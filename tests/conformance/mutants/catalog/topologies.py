"""Faults of topologies and device descriptions."""

from mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "description.too_many_attributes",
        "topology.c",
        "  args->num_attributes = args->device_description->attributes.count;\n",
        "  args->num_attributes = args->device_description->attributes.count + 1;\n",
        "The count of a device's attributes is one more than there are.",
    ),
    Mutant(
        "topology.serialized_loses_device",
        "topology.c",
        '  int read = sscanf(text, "tiny topology %lld %lld %lld", &rows, &columns, &processes);\n',
        '  int read = sscanf(text, "tiny topology %lld %lld %lld", &rows, &columns, &processes);\n'
        "  if (columns > 1 && processes == 1) --columns;\n",
        "A topology that was serialized comes back with one device less.",
    ),
    Mutant(
        "topology.deserialize_accepts_garbage",
        "topology.c",
        "  if (read != 3) return error_make(",
        "  if (read != 3) rows = columns = processes = 1;\n  if (rows == 0) return error_make(",
        "PJRT_TopologyDescription_Deserialize accepts bytes that are no topology.",
    ),
)
