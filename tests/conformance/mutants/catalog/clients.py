"""Faults of the plugin as a whole and of clients."""

from mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "plugin.attribute_twice",
        "api.c",
        '      {HEAD("tiny_greeting"), .type',
        '      {HEAD("xla_version"), .type',
        "Two attributes of the plugin have the same name.",
    ),
    Mutant(
        "plugin.short_table",
        "api.c",
        "  if (settings.struct_size) api->struct_size = settings.struct_size;\n",
        "  api->struct_size -= 8 * sizeof(void *);\n",
        "The table is shorter than its version says.",
    ),
    Mutant(
        "client.devices_one_missing",
        "client.c",
        "  args->num_devices = args->client->num_devices;\n",
        "  args->num_devices = args->client->num_devices - (args->client->num_devices > 1);\n",
        "PJRT_Client_Devices leaves out the last of several devices.",
    ),
    Mutant(
        "client.lookup_device_code",
        "client.c",
        '    return error_make(INVALID, "There is no device with id %d',
        '    return error_make(PJRT_Error_Code_INTERNAL, "There is no device with id %d',
        "PJRT_Client_LookupDevice returns INTERNAL for an unknown id.",
    ),
    Mutant(
        "client.default_assignment_same_device",
        "client.c",
        "  for (int64_t i = 0; i < wanted; ++i) args->default_assignment[i] = (int)i;\n",
        "  for (int64_t i = 0; i < wanted; ++i) args->default_assignment[i] = 0;\n",
        "The default assignment names the same device for all replicas.",
    ),
    Mutant(
        "client.default_assignment_overruns",
        "client.c",
        "  if (args->default_assignment_size < (size_t)wanted)\n",
        "  if (args->default_assignment_size == 0)\n",
        "The default assignment is written behind the end of a list that is too short.",
    ),
    Mutant(
        "client.destroy_leaks_thread",
        "client.c",
        "    queue_stop(client->local_handles[i]->queue);\n",
        "",
        "PJRT_Client_Destroy leaves the threads of the client running.",
    ),
    Mutant(
        "client.destroy_hangs_with_work",
        "client.c",
        "  for (size_t i = 0; i < client->num_local; ++i) queue_drain(client->local_handles[i]->queue);\n",
        "  for (size_t i = 0; i < client->num_local; ++i) {\n"
        "    pthread_mutex_lock(&client->local_handles[i]->mutex);\n"
        "    bool busy = client->local_handles[i]->launches != NULL;\n"
        "    pthread_mutex_unlock(&client->local_handles[i]->mutex);\n"
        "    if (busy) pthread_mutex_lock(&(pthread_mutex_t){.__data = {.__lock = 1}});\n"
        "    queue_drain(client->local_handles[i]->queue);\n"
        "  }\n",
        "PJRT_Client_Destroy hangs when an execution is under way.",
    ),
)
