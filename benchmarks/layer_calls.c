/* Calls of a table, many times, from C: what a layer adds to a call is less than Python's own call takes. The times are
 * those that the calling thread computes, which other work on the machine changes least. */
#include <string.h>
#include <time.h>

#include "pjrt_abi.h"

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* The client of a table; null if the plugin cannot make one. */
__attribute__((visibility("default"))) PJRT_Client *make_client(const PJRT_Api *api) {
  PJRT_Client_Create_Args args = {.struct_size = sizeof args};
  return api->PJRT_Client_Create(&args) == NULL ? args.client : NULL;
}

/* Seconds for each call of PJRT_Client_ProcessIndex: the least that a call can be, a handle in and a number out. */
__attribute__((visibility("default"))) double time_process_index(const PJRT_Api *api, PJRT_Client *client, long count) {
  PJRT_Client_ProcessIndex_Args args = {.struct_size = sizeof args, .client = client};
  const double start = seconds();
  for (long i = 0; i < count; i++) api->PJRT_Client_ProcessIndex(&args);
  return (seconds() - start) / (double)count;
}

/* The same for PJRT_Client_Devices, whose result is an array. */
__attribute__((visibility("default"))) double time_devices(const PJRT_Api *api, PJRT_Client *client, long count) {
  PJRT_Client_Devices_Args args = {.struct_size = sizeof args, .client = client};
  const double start = seconds();
  for (long i = 0; i < count; i++) api->PJRT_Client_Devices(&args);
  return (seconds() - start) / (double)count;
}

/* Seconds for each pair of PJRT_Buffer_ReadyEvent and PJRT_Event_OnReady with a callback, and the event's end. */
static void nothing(PJRT_Error *error, void *user_arg) { (void)error, (void)user_arg; }

__attribute__((visibility("default"))) double time_on_ready(const PJRT_Api *api, PJRT_Client *client, long count) {
  float value = 0;
  PJRT_Client_AddressableDevices_Args devices = {.struct_size = sizeof devices, .client = client};
  api->PJRT_Client_AddressableDevices(&devices);
  PJRT_Client_BufferFromHostBuffer_Args put = {
      .struct_size = sizeof put, .client = client, .data = &value, .type = PJRT_Buffer_Type_F32,
      .device = devices.addressable_devices[0]};
  if (api->PJRT_Client_BufferFromHostBuffer(&put) != NULL) return -1;
  const double start = seconds();
  for (long i = 0; i < count; i++) {
    PJRT_Buffer_ReadyEvent_Args ready = {.struct_size = sizeof ready, .buffer = put.buffer};
    api->PJRT_Buffer_ReadyEvent(&ready);
    PJRT_Event_OnReady_Args on_ready = {.struct_size = sizeof on_ready, .event = ready.event, .callback = nothing};
    api->PJRT_Event_OnReady(&on_ready);
    PJRT_Event_Destroy_Args destroy = {.struct_size = sizeof destroy, .event = ready.event};
    api->PJRT_Event_Destroy(&destroy);
  }
  const double result = (seconds() - start) / (double)count;
  PJRT_Event_Destroy_Args done = {.struct_size = sizeof done, .event = put.done_with_host_buffer};
  api->PJRT_Event_Destroy(&done);
  PJRT_Buffer_Destroy_Args destroy = {.struct_size = sizeof destroy, .buffer = put.buffer};
  api->PJRT_Buffer_Destroy(&destroy);
  return result;
}
