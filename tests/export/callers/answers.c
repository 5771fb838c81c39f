/* Answers: every function is there and writes what it returns, also where the arguments hold garbage or null. */
#include <stddef.h>

#include "caller.h"

void every_function_is_there(void) {
  MUST(api->struct_size == PJRT_Api_STRUCT_SIZE);
  void *const *slots = (void *const *)((const char *)api + offsetof(PJRT_Api, PJRT_Error_Destroy));
  const size_t count = (PJRT_Api_STRUCT_SIZE - offsetof(PJRT_Api, PJRT_Error_Destroy)) / sizeof(void *);
  MUST(count == 138);
  for (size_t i = 0; i < count; i++) MUST(slots[i] != NULL);
}

#define DESTROY_NOTHING(function, member)       \
  do {                                          \
    START(function##_Args, args);               \
    args.member = NULL;                         \
    MUST(api->function(&args) == NULL);         \
  } while (0)

void nothing_is_destroyed(void) {
  free_error(NULL);
  DESTROY_NOTHING(PJRT_Event_Destroy, event);
  DESTROY_NOTHING(PJRT_Client_Destroy, client);
  DESTROY_NOTHING(PJRT_Executable_Destroy, executable);
  DESTROY_NOTHING(PJRT_LoadedExecutable_Destroy, executable);
  DESTROY_NOTHING(PJRT_Buffer_Destroy, buffer);
  DESTROY_NOTHING(PJRT_CopyToDeviceStream_Destroy, stream);
  DESTROY_NOTHING(PJRT_TopologyDescription_Destroy, topology);
  DESTROY_NOTHING(PJRT_ExecuteContext_Destroy, context);
  DESTROY_NOTHING(PJRT_AsyncHostToDeviceTransferManager_Destroy, transfer_manager);
}

/* Garbage wherever the ABI allows it, from the first call to the last. */
void garbage_where_it_may_be(void) {
  PJRT_Client *client = new_client();
  PJRT_LoadedExecutable *executable = compile(client, DOUBLE);
  START(PJRT_ExecuteOptions, options);
  memset((char *)&options + 2 * sizeof(void *), 0, sizeof options - 2 * sizeof(void *));
  live(client, executable, &options);
  destroy_executable(executable);
  destroy_client(client);
}

#define WRITES(function, handle_member, handle, out)               \
  do {                                                             \
    START(function##_Args, args);                                  \
    args.handle_member = handle;                                   \
    ok(api->function(&args));                                      \
    MUST(!is_garbage(&args.out, sizeof args.out));                 \
  } while (0)

void every_answer_is_written(void) {
  PJRT_Client *client = new_client();
  PJRT_LoadedExecutable *executable = compile(client, DOUBLE);
  PJRT_Buffer *buffer = put(client, INPUT);
  PJRT_Device *device = first_device(client);
  WRITES(PJRT_Client_PlatformName, client, client, platform_name);
  WRITES(PJRT_Client_PlatformName, client, client, platform_name_size);
  WRITES(PJRT_Client_PlatformVersion, client, client, platform_version);
  WRITES(PJRT_Client_ProcessIndex, client, client, process_index);
  WRITES(PJRT_Client_Devices, client, client, devices);
  WRITES(PJRT_Client_Devices, client, client, num_devices);
  WRITES(PJRT_Client_AddressableMemories, client, client, addressable_memories);
  WRITES(PJRT_Client_AddressableMemories, client, client, num_addressable_memories);
  WRITES(PJRT_Device_GetDescription, device, device, device_description);
  WRITES(PJRT_Device_IsAddressable, device, device, is_addressable);
  WRITES(PJRT_Device_LocalHardwareId, device, device, local_hardware_id);
  WRITES(PJRT_Device_DefaultMemory, device, device, memory);
  WRITES(PJRT_Device_AddressableMemories, device, device, memories);
  WRITES(PJRT_Buffer_ElementType, buffer, buffer, type);
  WRITES(PJRT_Buffer_Dimensions, buffer, buffer, dims);
  WRITES(PJRT_Buffer_Dimensions, buffer, buffer, num_dims);
  WRITES(PJRT_Buffer_UnpaddedDimensions, buffer, buffer, num_dims);
  WRITES(PJRT_Buffer_DynamicDimensionIndices, buffer, buffer, num_dynamic_dims);
  WRITES(PJRT_Buffer_GetMemoryLayout, buffer, buffer, layout);
  WRITES(PJRT_Buffer_OnDeviceSizeInBytes, buffer, buffer, on_device_size_in_bytes);
  WRITES(PJRT_Buffer_Device, buffer, buffer, device);
  WRITES(PJRT_Buffer_Memory, buffer, buffer, memory);
  WRITES(PJRT_Buffer_IsOnCpu, buffer, buffer, is_on_cpu);
  WRITES(PJRT_Buffer_IsDeleted, buffer, buffer, is_deleted);
  WRITES(PJRT_LoadedExecutable_AddressableDevices, executable, executable, num_addressable_devices);
  WRITES(PJRT_LoadedExecutable_IsDeleted, executable, executable, is_deleted);
  WRITES(PJRT_LoadedExecutable_GetExecutable, loaded_executable, executable, executable);
  destroy_buffer(buffer);
  destroy_executable(executable);
  destroy_client(client);
}

void null_where_it_may_be(void) {
  PJRT_Client *client = new_client();
  PJRT_LoadedExecutable *executable = compile(client, DOUBLE);
  PJRT_Buffer *input = put(client, INPUT), *result = NULL;
  ok(try_run(executable, NULL, &input, 1, &result, NULL)); /* no options, no events */
  START(PJRT_Buffer_ToHostBuffer_Args, size);
  size.src = result;
  size.host_layout = NULL;
  size.dst = NULL;
  ok(api->PJRT_Buffer_ToHostBuffer(&size)); /* asks for the size */
  MUST(size.dst_size == 4 * sizeof(float));
  const int64_t none[1] = {0};
  START(PJRT_Client_BufferFromHostBuffer_Args, empty);
  memset((char *)&empty + 2 * sizeof(void *), 0, sizeof empty - 2 * sizeof(void *));
  empty.client = client;
  empty.type = PJRT_Buffer_Type_F32;
  empty.dims = none;
  empty.num_dims = 1;
  empty.device = first_device(client);
  ok(api->PJRT_Client_BufferFromHostBuffer(&empty)); /* no elements, no memory */
  ok(outcome(empty.done_with_host_buffer));
  destroy_buffer(empty.buffer);
  destroy_buffer(input);
  destroy_buffer(result);
  destroy_executable(executable);
  destroy_client(client);
}

void null_where_it_must_not_be(void) {
  PJRT_Client *client = new_client();
  PJRT_LoadedExecutable *executable = compile(client, DOUBLE), *other;
  PJRT_Buffer *nothing = NULL, *result = NULL;
  PJRT_Event *complete = NULL;
  fails(try_compile(NULL, DOUBLE, &other), PJRT_Error_Code_INVALID_ARGUMENT);
  fails(try_run(NULL, NULL, &nothing, 1, &result, &complete), PJRT_Error_Code_INVALID_ARGUMENT);
  fails(try_run(executable, NULL, &nothing, 1, &result, &complete), PJRT_Error_Code_INVALID_ARGUMENT);
  fails(try_run(executable, NULL, NULL, 0, &result, &complete), PJRT_Error_Code_INVALID_ARGUMENT);
  fails(try_run(executable, NULL, NULL, 1, &result, &complete), PJRT_Error_Code_INVALID_ARGUMENT);
  MUST(result == NULL && complete == NULL);
  START(PJRT_Buffer_ReadyEvent_Args, ready);
  ready.buffer = NULL;
  fails(api->PJRT_Buffer_ReadyEvent(&ready), PJRT_Error_Code_INVALID_ARGUMENT);
  START(PJRT_Executable_Serialize_Args, serialize);
  serialize.executable = NULL;
  fails(api->PJRT_Executable_Serialize(&serialize), PJRT_Error_Code_INVALID_ARGUMENT);
  destroy_executable(executable);
  destroy_client(client);
}
