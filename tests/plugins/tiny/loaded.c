/* Loaded executables: an executable and the devices it runs on. */
#include "tiny.h"

static tiny_status *assign(PJRT_Client *client, PJRT_LoadedExecutable *loaded) {
  tiny_compile_options *options = &loaded->core->options;
  if (options->portable) return NULL;
  int64_t count = options->num_replicas * options->num_partitions;
  if (!options->has_assignment && count > (int64_t)client->num_devices)
    return status_make(INVALID, "The program wants %lld devices, the client has %zu", (long long)count,
                       client->num_devices);
  for (int64_t i = 0; i < count; ++i) {
    int64_t id = options->has_assignment ? options->assignment[i] : i;
    if (!options->has_assignment && count == 1 && options->device_ordinal >= 0) id = options->device_ordinal;
    PJRT_Device *device = client_device(client, id);
    if (device == NULL) return status_make(INVALID, "The device assignment names device %lld, which there is not",
                                           (long long)id);
    loaded->assignment[i] = id;
    if (device->local_id < 0) continue;
    for (size_t j = 0; j < loaded->num_local; ++j) {
      if (loaded->local_devices[j] == device)
        return status_make(INVALID, "The device assignment names device %lld twice", (long long)id);
    }
    loaded->local_devices[loaded->num_local] = device;
    loaded->logical_ids[loaded->num_local++] =
        (PJRT_LogicalDeviceIds){(int)(i / options->num_partitions), (int)(i % options->num_partitions)};
  }
  return NULL;
}

static void free_loaded(PJRT_LoadedExecutable *loaded) {
  loaded_leave_meetings(loaded);
  PJRT_Client *client = loaded->client;
  executable_unref(loaded->core);
  free(loaded);
  client_unref(client);
}

tiny_status *executable_load(PJRT_Client *client, tiny_executable *owned, PJRT_LoadedExecutable **out) {
  PJRT_LoadedExecutable *loaded = tiny_calloc(1, sizeof *loaded);
  loaded->core = owned;
  loaded->client = client_ref(client);
  tiny_status *status = assign(client, loaded);
  if (status) {
    free_loaded(loaded);
    return status;
  }
  live_add(LIVE_LOADED_EXECUTABLE, 1);
  *out = loaded;
  return NULL;
}

PJRT_Error *tiny_Client_Compile(PJRT_Client_Compile_Args *args) {
  TINY_SIZED(PJRT_Program, args->program);
  tiny_executable *executable;
  tiny_status *status =
      executable_make(args->program, args->compile_options, args->compile_options_size, &executable);
  return error_from(status ? status : executable_load(args->client, executable, &args->executable));
}

/* The executable stays the caller's. With options given it is compiled again under them. */
PJRT_Error *tiny_Client_Load(PJRT_Client_Load_Args *args) {
  tiny_executable *core = args->executable->core;
  if (args->compile_options_size == 0)
    return error_from(executable_load(args->client, executable_ref(core), &args->loaded_executable));
  PJRT_Program program = {.code = core->program->source, .code_size = strlen(core->program->source), .format = "tiny",
                          .format_size = 4};
  tiny_executable *executable;
  tiny_status *status = executable_make(&program, args->compile_options, args->compile_options_size, &executable);
  return error_from(status ? status : executable_load(args->client, executable, &args->loaded_executable));
}

PJRT_Error *tiny_LoadedExecutable_Destroy(PJRT_LoadedExecutable_Destroy_Args *args) {
  if (args->executable == NULL) return NULL;
  free_loaded(args->executable);
  live_add(LIVE_LOADED_EXECUTABLE, -1);
  return NULL;
}

PJRT_Error *tiny_LoadedExecutable_GetExecutable(PJRT_LoadedExecutable_GetExecutable_Args *args) {
  args->executable = executable_handle(executable_ref(args->loaded_executable->core));
  return NULL;
}

PJRT_Error *tiny_LoadedExecutable_AddressableDevices(PJRT_LoadedExecutable_AddressableDevices_Args *args) {
  args->addressable_devices = args->executable->local_devices;
  args->num_addressable_devices = args->executable->num_local;
  return NULL;
}

PJRT_Error *tiny_LoadedExecutable_AddressableDeviceLogicalIds(
    PJRT_LoadedExecutable_AddressableDeviceLogicalIds_Args *args) {
  args->addressable_device_logical_ids = args->executable->logical_ids;
  args->num_addressable_device_logical_ids = args->executable->num_local;
  return NULL;
}

static void free_assignment(PJRT_DeviceAssignmentSerialized *serialized) {
  free(serialized);
  live_add(LIVE_SERIALIZED, -1);
}

PJRT_Error *tiny_LoadedExecutable_GetDeviceAssignment(PJRT_LoadedExecutable_GetDeviceAssignment_Args *args) {
  if (args->executable->core->options.portable)
    return error_make(PJRT_Error_Code_FAILED_PRECONDITION, "A portable executable has no device assignment");
  tiny_bytes out = {0};
  assignment_serialize(&args->executable->core->options, args->executable->assignment, &out);
  live_add(LIVE_SERIALIZED, 1);
  args->serialized_bytes = out.data;
  args->serialized_bytes_size = out.size;
  args->serialized_device_assignment = (PJRT_DeviceAssignmentSerialized *)out.data;
  args->serialized_device_assignment_deleter = free_assignment;
  return NULL;
}

PJRT_Error *tiny_LoadedExecutable_Delete(PJRT_LoadedExecutable_Delete_Args *args) {
  atomic_store(&args->executable->deleted, true);
  return NULL;
}

PJRT_Error *tiny_LoadedExecutable_IsDeleted(PJRT_LoadedExecutable_IsDeleted_Args *args) {
  args->is_deleted = atomic_load(&args->executable->deleted);
  return NULL;
}

PJRT_Error *tiny_LoadedExecutable_Fingerprint(PJRT_LoadedExecutable_Fingerprint_Args *args) {
  args->executable_fingerprint = args->executable->core->fingerprint;
  args->executable_fingerprint_size = strlen(args->executable_fingerprint);
  return NULL;
}
