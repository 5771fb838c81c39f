/* Rules about memory of the host, and about external references. */
#include <sys/mman.h>

#include "program.h"

static PJRT_Client_BufferFromHostBuffer_Args give(PJRT_Client *client, const void *data,
                                                  PJRT_HostBufferSemantics semantics) {
  const int64_t dims[] = {1024};
  CALL(Client_BufferFromHostBuffer, put, .client = client, .data = data, .type = PJRT_Buffer_Type_F32, .dims = dims,
       .num_dims = 1, .host_buffer_semantics = semantics, .device = device_of(client, 0));
  return put;
}

static void host_memory_changed(void) {
  static float data[1024];
  PJRT_Client *client = make_client();
  hold(true);
  PJRT_Client_BufferFromHostBuffer_Args put =
      give(client, data, PJRT_HostBufferSemantics_kImmutableUntilTransferCompletes);
  data[7] = 1;
  hold(false);
  BREAK(Event_Await, await, .event = put.done_with_host_buffer);
  destroy_event(put.done_with_host_buffer);
  destroy_buffer(put.buffer);
  destroy_client(client);
}

static void host_memory_freed(void) {
  PJRT_Client *client = make_client();
  void *data = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  PJRT_Client_BufferFromHostBuffer_Args put = give(client, data, PJRT_HostBufferSemantics_kImmutableZeroCopy);
  await_buffer(put.buffer);
  munmap(data, 4096);
  destroy_buffer(put.buffer);
  BREAK(Event_Await, await, .event = put.done_with_host_buffer);
  destroy_event(put.done_with_host_buffer);
  destroy_client(client);
}

static void deleted_during_read(void) {
  static float data[4];
  PJRT_Client *client = make_client();
  PJRT_Buffer *buffer = make_buffer(client);
  await_buffer(buffer);
  hold(true);
  CALL(Buffer_ToHostBuffer, get, .src = buffer, .dst = data, .dst_size = sizeof data);
  BREAK(Buffer_Destroy, destroy, .buffer = buffer);
  hold(false);
  CALL(Event_Await, await, .event = get.event);
  destroy_event(get.event);
  destroy_client(client);
}

static void destroyed_with_references(void) {
  PJRT_Client *client = make_client();
  PJRT_Buffer *buffer = make_buffer(client);
  CALL(Buffer_IncreaseExternalReferenceCount, increase, .buffer = buffer);
  ARGS(Buffer_Destroy, destroy, .buffer = buffer);
  PJRT_Error *error = api->PJRT_Buffer_Destroy(&destroy);
  const bool refused = error != NULL;
  broken(error);
  if (refused) {
    CALL(Buffer_DecreaseExternalReferenceCount, decrease, .buffer = buffer);
    destroy_buffer(buffer);
  }
  destroy_client(client);
}

static void references_below_zero(void) {
  PJRT_Client *client = make_client();
  PJRT_Buffer *buffer = make_buffer(client);
  BREAK(Buffer_DecreaseExternalReferenceCount, decrease, .buffer = buffer);
  destroy_buffer(buffer);
  destroy_client(client);
}

const rule_case memory_cases[] = {
    {"host-memory-changed", host_memory_changed, false},
    {"host-memory-freed", host_memory_freed, false},
    {"deleted-during-read", deleted_during_read, false},
    {"destroyed-with-references", destroyed_with_references, false},
    {"references-below-zero", references_below_zero, false},
    {NULL, NULL, false},
};
