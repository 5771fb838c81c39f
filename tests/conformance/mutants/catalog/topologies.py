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
        '  if (args->topology) return NULL;\n  return error_make(INVALID, "these',
        "  if (args->topology && args->topology->facts.num_devices > 1) --args->topology->facts.num_devices;\n"
        "  if (args->topology) return NULL;\n"
        '  return error_make(INVALID, "these',
        "A topology that was serialized comes back with one device less.",
    ),
    Mutant(
        "topology.deserialize_accepts_garbage",
        "topology.c",
        "  args->topology = is_one ? topology_make(&message) : NULL;\n",
        "  args->topology = is_one ? topology_make(&message) : NULL;\n"
        "  extern PJRT_TopologyDescription *grid_make(int64_t, int64_t, int64_t, bool, bool);\n"
        "  if (args->topology == NULL) args->topology = grid_make(1, 1, 1, true, false);\n",
        "PJRT_TopologyDescription_Deserialize accepts bytes that are no topology.",
    ),
)
