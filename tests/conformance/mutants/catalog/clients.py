"""Faults of the plugin as a whole and of clients."""

from mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "plugin.attribute_twice",
        "table.c",
        '      {HEAD("tiny_greeting"), .type',
        '      {HEAD("xla_version"), .type',
        "Two attributes of the plugin have the same name.",
    ),
    Mutant(
        "plugin.short_table",
        "table.c",
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
        'error_make(INVALID, "No matching device found for device_id',
        'error_make(PJRT_Error_Code_INTERNAL, "No matching device found for device_id',
        "PJRT_Client_LookupDevice returns INTERNAL for an unknown id.",
    ),
    Mutant(
        "client.default_assignment_same_device",
        "client.c",
        "args->default_assignment[i] = is_enough ? client->devices[i].description->id : (int)i;\n",
        "args->default_assignment[i] = is_enough ? 0 : 0;\n",
        "The default assignment names the same device for all replicas.",
    ),
    Mutant(
        "client.default_assignment_overruns",
        "client.c",
        "  if ((int64_t)args->default_assignment_size < wanted)\n",
        "  if (args->default_assignment_size == 0)\n",
        "The default assignment is written behind the end of a list that is too short.",
    ),
    Mutant(
        "client.destroy_leaks_thread",
        "client.c",
        "  if (client->driver) client->table->close(client->driver);\n",
        "",
        "PJRT_Client_Destroy leaves the threads of the client running.",
    ),
    Mutant(
        "client.destroy_hangs_with_work",
        "client.c",
        "  client_wait_for_all(client);\n  client_unref(client);\n",
        "  for (size_t i = 0; i < client->num_devices; ++i) {\n"
        "    pthread_mutex_lock(&client->devices[i].mutex);\n"
        "    bool busy = client->devices[i].launches != NULL;\n"
        "    pthread_mutex_unlock(&client->devices[i].mutex);\n"
        "    while (busy) pause();\n"
        "  }\n"
        "  client_wait_for_all(client);\n"
        "  client_unref(client);\n",
        "PJRT_Client_Destroy hangs when an execution is under way.",
    ),
)
