/* Buffers: where new ones are placed, external references, copies to the host, and the host memory that they read. */
#include "pjrt_support/inspection.h" /* first: it asks the system's headers for everything */

#include <inttypes.h>

#include "validate.h"
#include "host_memory.h"

#define F(name) PJRT_FUNCTION_##name
#define HAS(args, type, field) ((args)->struct_size >= offsetof(type, field) + sizeof((args)->field))

enum { MOST_DIMENSIONS = 64 };

/* ---- places -------------------------------------------------------------------------------------------------------*/
static bool has_memory(pjrt_check *check, PJRT_Device *device, const PJRT_Memory *memory) {
  PJRT_Device_AddressableMemories_Args args = {.struct_size = PJRT_Device_AddressableMemories_Args_STRUCT_SIZE,
                                               .device = device};
  void *error = NULL;
  if (!pjrt_call_below(check->validate->stack, F(Device_AddressableMemories), &args, &error)) return true;
  if (error != NULL) {
    PJRT_Error_Destroy_Args destroy = {.struct_size = PJRT_Error_Destroy_Args_STRUCT_SIZE, .error = error};
    pjrt_call_below(check->validate->stack, F(Error_Destroy), &destroy, &error);
    return true;
  }
  for (size_t i = 0; i < args.num_memories; i++) {
    if (args.memories[i] == memory) return true;
  }
  return false;
}

static void check_place(pjrt_check *check, PJRT_Device *device, PJRT_Memory *memory) {
  if (device == NULL && memory == NULL)
    pjrt_found(check, PJRT_RULE_NO_PLACE, "device", NULL, "device and memory are null");
  else if (check->validate->advice && device != NULL && memory != NULL && !has_memory(check, device, memory))
    pjrt_found(check, PJRT_RULE_TWO_PLACES, "memory", NULL, "it is no memory of the device");
}

/* ---- host memory --------------------------------------------------------------------------------------------------*/
/* Bits of an element; 0: none, or unknown. */
static size_t element_bits(PJRT_Buffer_Type type) {
  static const uint8_t bits[] = {0,  8,  8, 16, 32, 64, 8, 16, 32, 64, 16, 32, 64, 16, 64, 128, 8,
                                 8,  8,  8, 8,  4,  4,  0, 2,  2,  8,  8,  8,  4,  1,  1,  6,   6};
  return (size_t)type < sizeof bits ? bits[type] : 0;
}

/* The bytes from the first element to the last. Types of less than a byte take one, as in the host's arrays. */
static size_t span_of(const PJRT_Client_BufferFromHostBuffer_Args *args) {
  const size_t element = (element_bits(args->type) + 7) / 8;
  size_t span = element;
  if (args->num_dims > MOST_DIMENSIONS) return 0;
  for (size_t i = 0; i < args->num_dims; i++) {
    const int64_t dimension = args->dims[i];
    if (dimension <= 0) return 0;
    if (args->byte_strides != NULL && args->num_byte_strides == args->num_dims) {
      if (args->byte_strides[i] < 0) return 0; /* begins before the pointer */
      span += (size_t)(dimension - 1) * (size_t)args->byte_strides[i];
    } else if ((uint64_t)dimension > (UINT64_C(1) << 40) / (span ? span : 1)) {
      return 0;
    } else {
      span *= (size_t)dimension;
    }
  }
  return span;
}

static bool is_kept(const PJRT_Client_BufferFromHostBuffer_Args *args) {
  return args->host_buffer_semantics == PJRT_HostBufferSemantics_kImmutableUntilTransferCompletes ||
         args->host_buffer_semantics == PJRT_HostBufferSemantics_kImmutableZeroCopy;
}

static bool is_readable(pjrt_check *check, const void *data, size_t size) {
  const pjrt_memory_range range = {data, size};
  if (size == 0) return false;
  if (data == NULL) {
    pjrt_found(check, PJRT_RULE_NULL_POINTER, "data", NULL, "it is null, expected %zu bytes", size);
    return false;
  }
  if (pjrt_readable(&range, 1)) return true;
  pjrt_found(check, PJRT_RULE_UNREADABLE_MEMORY, "data", NULL, "%zu bytes at 0x%" PRIxPTR " cannot be read", size,
             (uintptr_t)data);
  return false;
}

static void before_from_host(pjrt_check *check) {
  const PJRT_Client_BufferFromHostBuffer_Args *args = check->args;
  check_place(check, args->device, args->memory);
  if (args->byte_strides != NULL && args->num_byte_strides != 0 && args->num_byte_strides != args->num_dims)
    pjrt_found(check, PJRT_RULE_STRIDES_COUNT, "byte_strides", NULL, "%zu strides for %zu dimensions",
               args->num_byte_strides, args->num_dims);
  if (args->type == PJRT_Buffer_Type_INVALID)
    pjrt_found(check, PJRT_RULE_ENUM_OUT_OF_RANGE, "type", NULL, "INVALID is no type of elements");
  if (check->refused) return;
  check->span = span_of(args);
  if (is_readable(check, args->data, check->span) && check->validate->checksums && is_kept(args))
    check->checksum = pjrt_checksum(args->data, check->span);
}

static void watch(pjrt_check *check, PJRT_Event *event, const void *data, const PJRT_Buffer *buffer) {
  const pjrt_host_watch contents = {data, check->span, check->checksum, (int16_t)check->frame->index, buffer};
  pjrt_host_watch *each = pjrt_host_watch_make(&contents);
  pjrt_handle_shard *shard = pjrt_handles_lock(&check->validate->handles, event);
  pjrt_handle_record *record = pjrt_handles_find(shard, event, PJRT_HANDLE_Event);
  const bool kept = record != NULL && record->state == PJRT_HANDLE_LIVE && record->watch == NULL;
  if (kept) record->watch = each;
  pjrt_handles_unlock(shard);
  if (!kept) pjrt_host_watch_free(each);
}

static void after_from_host(pjrt_check *check) {
  const PJRT_Client_BufferFromHostBuffer_Args *args = check->args;
  if (!check->validate->checksums || check->span == 0 || !is_kept(args)) return;
  const bool in_place = args->host_buffer_semantics == PJRT_HostBufferSemantics_kImmutableZeroCopy;
  watch(check, args->done_with_host_buffer, args->data, in_place ? args->buffer : NULL);
}

/* The plugin does not read a buffer's host memory any more after this. */
static void end_watch(pjrt_check *check, void *buffer) {
  pjrt_host_verdict verdict = PJRT_HOST_SAME;
  pjrt_handle_shard *shard = pjrt_handles_lock(&check->validate->handles, buffer);
  pjrt_handle_record *record = pjrt_handles_find(shard, buffer, PJRT_HANDLE_Buffer);
  pjrt_host_watch *each = record != NULL && record->state == PJRT_HANDLE_LIVE ? record->watch : NULL;
  if (each != NULL) {
    record->watch = NULL;
    verdict = pjrt_host_watch_compare(each);
  }
  pjrt_handles_unlock(shard);
  pjrt_host_watch_end(check, each, verdict);
}

/* Data of a piecewise transfer, up to its event. */
static void before_transfer(pjrt_check *check) {
  const PJRT_AsyncHostToDeviceTransferManager_TransferData_Args *args = check->args;
  check->span = args->transfer_size > 0 ? (size_t)args->transfer_size : 0;
  if (check->span != 0 && check->validate->checksums) check->checksum = pjrt_checksum(args->data, check->span);
}

static void after_transfer(pjrt_check *check) {
  const PJRT_AsyncHostToDeviceTransferManager_TransferData_Args *args = check->args;
  if (check->span != 0 && check->validate->checksums)
    watch(check, args->done_with_h2d_transfer, args->data, NULL);
}

/* ---- copies to the host -------------------------------------------------------------------------------------------*/
static void note_read(pjrt_check *check, void *buffer, void *event) {
  uint32_t generation = 0;
  if (!check->validate->advice || event == NULL) return;
  pjrt_handle_shard *shard = pjrt_handles_lock(&check->validate->handles, event);
  const pjrt_handle_record *read = pjrt_handles_find(shard, event, PJRT_HANDLE_Event);
  if (read != NULL) generation = read->generation;
  pjrt_handles_unlock(shard);
  shard = pjrt_handles_lock(&check->validate->handles, buffer);
  pjrt_handle_record *record = pjrt_handles_find(shard, buffer, PJRT_HANDLE_Buffer);
  if (record != NULL) {
    record->read_event = event;
    record->read_generation = generation;
  }
  pjrt_handles_unlock(shard);
}

static void check_reads(pjrt_check *check, const pjrt_handle_record *buffer) {
  if (!check->validate->advice || buffer->read_event == NULL) return;
  void *event = (void *)(uintptr_t)buffer->read_event;
  pjrt_handle_shard *shard = pjrt_handles_lock(&check->validate->handles, event);
  const pjrt_handle_record *record = pjrt_handles_find(shard, event, PJRT_HANDLE_Event);
  const bool unknown = record == NULL || record->state != PJRT_HANDLE_LIVE ||
                       record->generation != buffer->read_generation || record->ready;
  pjrt_handles_unlock(shard);
  if (!unknown && !pjrt_event_is_ready(check, event))
    pjrt_found(check, PJRT_RULE_DELETED_DURING_READ, "buffer", buffer, "the event of the copy is not ready");
}

/* ---- external references ------------------------------------------------------------------------------------------*/
static void change_references(pjrt_check *check, void *buffer, int change) {
  pjrt_handle_shard *shard = pjrt_handles_lock(&check->validate->handles, buffer);
  pjrt_handle_record *record = pjrt_handles_find(shard, buffer, PJRT_HANDLE_Buffer);
  if (record != NULL) record->references += change;
  pjrt_handles_unlock(shard);
}

static void before_end(pjrt_check *check, void *buffer, bool destroys) {
  pjrt_handle_record copy;
  if (buffer == NULL) return;
  pjrt_handle_shard *shard = pjrt_handles_lock(&check->validate->handles, buffer);
  const pjrt_handle_record *record = pjrt_handles_find(shard, buffer, PJRT_HANDLE_Buffer);
  const bool live = record != NULL && record->state < PJRT_HANDLE_CONSUMED;
  if (live) copy = *record;
  pjrt_handles_unlock(shard);
  if (!live) return;
  if (destroys && copy.references > 0)
    pjrt_found(check, PJRT_RULE_DESTROYED_WITH_REFERENCES, "buffer", &copy, "it has %" PRId32 " external references",
               copy.references);
  check_reads(check, &copy);
  end_watch(check, buffer);
}

static void before_decrease(pjrt_check *check, void *buffer) {
  pjrt_handle_record copy = {.references = 1};
  pjrt_handle_shard *shard = pjrt_handles_lock(&check->validate->handles, buffer);
  const pjrt_handle_record *record = pjrt_handles_find(shard, buffer, PJRT_HANDLE_Buffer);
  if (record != NULL) copy = *record;
  pjrt_handles_unlock(shard);
  if (copy.references <= 0)
    pjrt_found(check, PJRT_RULE_REFERENCES_BELOW_ZERO, "buffer", &copy, "it has no external references");
}

void pjrt_end_donated(pjrt_check *check, void *buffer) {
  end_watch(check, buffer);
  pjrt_end_handle(check, buffer, PJRT_HANDLE_Buffer, PJRT_HANDLE_DONATED);
}

/* ---- calls --------------------------------------------------------------------------------------------------------*/
void pjrt_before_buffer_call(pjrt_check *check) {
  switch (check->frame->index) {
    case F(Client_BufferFromHostBuffer): before_from_host(check); break;
    case F(Client_CreateUninitializedBuffer): {
      const PJRT_Client_CreateUninitializedBuffer_Args *args = check->args;
      check_place(check, args->device, args->memory);
      break;
    }
    case F(Client_CreateViewOfDeviceBuffer): {
      const PJRT_Client_CreateViewOfDeviceBuffer_Args *args = check->args;
      const bool has = HAS(args, PJRT_Client_CreateViewOfDeviceBuffer_Args, memory);
      check_place(check, args->device, has ? args->memory : NULL);
      break;
    }
    case F(AsyncHostToDeviceTransferManager_TransferData): before_transfer(check); break;
    case F(Buffer_Destroy): before_end(check, ((PJRT_Buffer_Destroy_Args *)check->args)->buffer, true); break;
    case F(Buffer_Delete): before_end(check, ((PJRT_Buffer_Delete_Args *)check->args)->buffer, false); break;
    case F(Buffer_DecreaseExternalReferenceCount):
      before_decrease(check, ((PJRT_Buffer_DecreaseExternalReferenceCount_Args *)check->args)->buffer);
      break;
    default: break;
  }
}

void pjrt_after_buffer_call(pjrt_check *check) {
  switch (check->frame->index) {
    case F(Client_BufferFromHostBuffer): after_from_host(check); break;
    case F(AsyncHostToDeviceTransferManager_TransferData): after_transfer(check); break;
    case F(Buffer_ToHostBuffer): {
      const PJRT_Buffer_ToHostBuffer_Args *args = check->args;
      if (args->dst != NULL) note_read(check, args->src, args->event);
      break;
    }
    case F(Buffer_CopyRawToHost): {
      const PJRT_Buffer_CopyRawToHost_Args *args = check->args;
      note_read(check, args->buffer, args->event);
      break;
    }
    case F(Buffer_IncreaseExternalReferenceCount):
      change_references(check, ((PJRT_Buffer_IncreaseExternalReferenceCount_Args *)check->args)->buffer, 1);
      break;
    case F(Buffer_DecreaseExternalReferenceCount):
      change_references(check, ((PJRT_Buffer_DecreaseExternalReferenceCount_Args *)check->args)->buffer, -1);
      break;
    case F(Buffer_DonateWithControlDependency):
      pjrt_end_donated(check, ((PJRT_Buffer_DonateWithControlDependency_Args *)check->args)->buffer);
      break;
    default: break;
  }
}
