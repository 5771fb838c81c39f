/* Random calls of the C API, many of them wrong, on a plugin whose driver may fail. Usage:
 *
 *     random_calls PLUGIN SEED CALLS THREADS WATCHDOG EXECUTABLE...
 *
 * Each thread has buffers, events and managers of its own, of one client. What a buffer must hold is known: a value, an
 * error, or what a buffer that is not fulfilled yet will hold. A value that is read must be that one; errors are allowed
 * where $FAULTS is set or the watchdog is on. At the end nothing may be left: each callback was called once, and the
 * devices hold no bytes. Executables: f32[3,40] twice -> x/2 + y/4; one that is donated -> 1 - x; and the first one on
 * two devices; and the first one with a step that calls a handler of this program; and two on two devices with one
 * argument each, x/4 + y/4, and x/2 + y/2 with such a step on each before they meet. WATCHDOG is in milliseconds, 0 for
 * none.
 *
 * With $END=exit the process ends somewhere in the middle, while its threads call. With $END=fork it is forked there: the
 * fork calls, too, which must end, with errors or without, and its parent goes on. */
#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "pjrt_abi.h"
#include "pjrt_abi/extensions.h"
#include "xla_ffi.h"

#define START(type) {.struct_size = type##_STRUCT_SIZE}
#define CALL(name, args) api->PJRT_##name(args)
enum { BUFFERS = 24, EVENTS = 24, OTHERS = 6, ELEMENTS = 120, MOST_DEVICES = 8, MOST_EXECUTABLES = 6 };

static const PJRT_Api *api;
static const PJRT_RawBuffer_Extension *raw_api;
static const PLUGIN_Profiler_Api *profiler_api;
static PJRT_Client *client;
static PJRT_Device *const *devices;
static size_t num_devices;
static PJRT_LoadedExecutable *executables[MOST_EXECUTABLES];
static bool may_fail;
static atomic_long calls_left, callbacks_wanted, callbacks_seen, refusals;

static const int64_t shapes[3][2] = {{3, 40}, {7, 1}, {0, 5}};

/* ---- what a buffer must hold ----------------------------------------------------------------------------------------------*/
typedef enum state { KNOWN, ANYTHING, FAILED, OPEN } state;
typedef struct node {
  state state;
  float value;
  bool may_fail;
  int op; /* of an open one: 0 itself, 1 x/2 + y/4, 2 1 - x, 3 x, 4 an error once x is there, 5 x/4 + y/4, 6 x/2 + y/2 */
  struct node *x, *y, *next;
} node;

typedef struct buffer {
  PJRT_Buffer *handle; /* null: the place is free */
  node *node;
  int shape, device;
  bool is_gone;
  int external;
} buffer;

typedef struct pending { /* an event, and the memory of the host that must stay until it is ready */
  PJRT_Event *event;
  float *memory, *start;
  size_t count;
  node *node; /* what the memory holds then; null where nothing is known */
} pending;

typedef struct transfer {
  PJRT_AsyncHostToDeviceTransferManager *handle;
  node *node;
  int device;
  bool is_retrieved, is_last;
} transfer;

typedef struct worker {
  uint64_t random;
  node *nodes;
  buffer buffers[BUFFERS];
  pending events[EVENTS];
  transfer transfers[OTHERS];
  struct { PJRT_FulfillAliasBufferCallback *handle; node *node; int device; } aliases[OTHERS];
  struct { PJRT_Buffer_DonateWithControlDependency_Args args; node *node; } donations[OTHERS];
  struct { PJRT_Buffer_CopyRawToHostFuture_Args args; float *memory; } futures[OTHERS];
  struct { PJRT_RawBuffer *handle; node *node; int shape; } raws[OTHERS];
  PJRT_Event *settable[OTHERS];
  struct { PLUGIN_Profiler *handle; bool runs; } profiler;
} worker;

static void die(const char *what) {
  fprintf(stderr, "random_calls: %s\n", what);
  abort();
}

static uint32_t below(worker *w, uint32_t n) {
  w->random = w->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return (uint32_t)((w->random >> 33) % n);
}

static node *node_make(worker *w, state state, float value) {
  node *each = calloc(1, sizeof *each);
  *each = (node){.state = state, .value = value, .next = w->nodes};
  return w->nodes = each;
}

static state settle(node *each) {
  if (each->state != OPEN || each->op == 0) return each->state;
  state x = settle(each->x), y = each->y ? settle(each->y) : KNOWN;
  if (x == OPEN || y == OPEN) return OPEN;
  each->may_fail |= each->x->may_fail || (each->y && each->y->may_fail);
  if (x == FAILED || y == FAILED || each->op == 4) each->state = FAILED;
  else if (x == ANYTHING || y == ANYTHING) each->state = ANYTHING;
  else {
    each->state = KNOWN;
    float x_value = each->x->value, y_value = each->y ? each->y->value : 0;
    switch (each->op) {
      case 1: each->value = x_value * 0.5f + y_value * 0.25f; break;
      case 2: each->value = 1 - x_value; break;
      case 5: each->value = x_value * 0.25f + y_value * 0.25f; break;
      case 6: each->value = x_value * 0.5f + y_value * 0.5f; break;
      default: each->value = x_value;
    }
  }
  return each->state;
}

static node *node_of(worker *w, int op, node *x, node *y) {
  node *each = node_make(w, OPEN, 0);
  each->op = op;
  each->x = x;
  each->y = y;
  settle(each);
  return each;
}

/* ---- errors and events ------------------------------------------------------------------------------------------------------*/
static bool failed(PJRT_Error *error) {
  if (error == NULL) return false;
  PJRT_Error_Message_Args message = START(PJRT_Error_Message_Args);
  message.error = error;
  CALL(Error_Message, &message);
  PJRT_Error_GetCode_Args code = START(PJRT_Error_GetCode_Args);
  code.error = error;
  if (CALL(Error_GetCode, &code) || message.message_size == 0 || code.code <= 0 || code.code > 16) die("an empty error");
  PJRT_Error_Destroy_Args destroy = START(PJRT_Error_Destroy_Args);
  destroy.error = error;
  CALL(Error_Destroy, &destroy);
  atomic_fetch_add(&refusals, 1);
  return true;
}

static void count_callback(PJRT_Error *error, void *arg) {
  (void)arg;
  failed(error);
  atomic_fetch_add(&callbacks_seen, 1);
}
static void count_free(void *data, void *arg) {
  (void)arg;
  free(data);
  atomic_fetch_add(&callbacks_seen, 1);
}

static void destroy_event(PJRT_Event *event) {
  if (event == NULL) return;
  PJRT_Event_Destroy_Args args = START(PJRT_Event_Destroy_Args);
  args.event = event;
  failed(CALL(Event_Destroy, &args));
}

static bool is_ready(PJRT_Event *event) {
  PJRT_Event_IsReady_Args args = START(PJRT_Event_IsReady_Args);
  args.event = event;
  failed(CALL(Event_IsReady, &args));
  return args.is_ready;
}

static bool await(PJRT_Event *event) {
  PJRT_Event_Await_Args args = START(PJRT_Event_Await_Args);
  args.event = event;
  return failed(CALL(Event_Await, &args));
}

/* The event is ready, or will be: what it brought is checked. */
static void end_pending(pending *each) {
  bool error = await(each->event);
  if (each->node) {
    state state = settle(each->node);
    if (error && state == KNOWN && !each->node->may_fail && !may_fail) die("a right buffer has an error");
    if (!error && state == FAILED) die("an error was lost");
    for (size_t i = 0; !error && state == KNOWN && i < each->count; ++i) {
      if (each->start[i] == each->node->value) continue;
      fprintf(stderr, "random_calls: element %zu: expected %g, found %g\n", i, (double)each->node->value,
              (double)each->start[i]);
      abort();
    }
  }
  destroy_event(each->event);
  free(each->memory);
  *each = (pending){0};
}

/* Keeps an event; one that is open is looked at later. */
static void keep_event(worker *w, PJRT_Event *event, float *memory, float *start, size_t count, node *node) {
  pending each = {event, memory, start, count, node};
  uint32_t start_at = below(w, EVENTS);
  for (uint32_t i = 0; i < EVENTS; ++i) {
    pending *place = &w->events[(start_at + i) % EVENTS];
    if (place->event && !is_ready(place->event)) continue;
    if (place->event) end_pending(place);
    *place = each;
    return;
  }
  if (node && settle(node) != OPEN) {
    end_pending(&each);
    return;
  }
  /* All places wait for something: nothing is known of this one, so it cannot be waited for either. */
  PJRT_Event_OnReady_Args args = START(PJRT_Event_OnReady_Args);
  args.event = event;
  if (memory) die("no place for an event");
  atomic_fetch_add(&callbacks_wanted, 1);
  args.callback = count_callback;
  if (failed(CALL(Event_OnReady, &args))) die("OnReady failed");
  destroy_event(event);
}

static bool has_place(worker *w) {
  for (int i = 0; i < EVENTS; ++i) {
    if (w->events[i].event == NULL || is_ready(w->events[i].event)) return true;
  }
  return false;
}

/* ---- buffers ------------------------------------------------------------------------------------------------------------------*/
static void destroy_buffer(buffer *each) {
  if (each->handle == NULL) return;
  PJRT_Buffer_Destroy_Args args = START(PJRT_Buffer_Destroy_Args);
  args.buffer = each->handle;
  failed(CALL(Buffer_Destroy, &args));
  *each = (buffer){0};
}

static void keep_buffer(worker *w, PJRT_Buffer *handle, node *node, int shape, int device) {
  buffer *place = &w->buffers[below(w, BUFFERS)];
  destroy_buffer(place);
  *place = (buffer){handle, node, shape, device, false, 0};
}

static buffer *any_buffer(worker *w, int shape, int device) {
  uint32_t start = below(w, BUFFERS);
  for (uint32_t i = 0; i < BUFFERS; ++i) {
    buffer *each = &w->buffers[(start + i) % BUFFERS];
    if (each->handle && (shape < 0 || each->shape == shape) && (device < 0 || each->device == device)) return each;
  }
  return NULL;
}

static size_t count_of(int shape) { return (size_t)(shapes[shape][0] * shapes[shape][1]); }
static PJRT_Memory *memory_of(worker *w, int device) {
  (void)w;
  PJRT_Device_DefaultMemory_Args args = START(PJRT_Device_DefaultMemory_Args);
  args.device = devices[device];
  failed(CALL(Device_DefaultMemory, &args));
  return args.memory;
}

static float *host_memory(size_t count, float value) {
  float *memory = aligned_alloc(64, (count * sizeof(float) + 127) / 64 * 64);
  for (size_t i = 0; i < count; ++i) memory[i] = value;
  return memory;
}

static void from_host(worker *w) {
  int shape = below(w, 10) ? 0 : (int)below(w, 3), device = (int)below(w, (uint32_t)num_devices);
  float value = (float)below(w, 1000) / 64;
  if (!has_place(w)) return;
  float *memory = host_memory(count_of(shape), value);
  int64_t turned[2] = {4, 4 * shapes[shape][0]};
  PJRT_Client_BufferFromHostBuffer_Args args = START(PJRT_Client_BufferFromHostBuffer_Args);
  args.client = client;
  args.data = memory;
  args.type = below(w, 50) ? PJRT_Buffer_Type_F32 : (PJRT_Buffer_Type)below(w, 60);
  args.dims = shapes[shape];
  args.num_dims = 2;
  args.host_buffer_semantics = (PJRT_HostBufferSemantics)below(w, below(w, 50) ? 4 : 6);
  args.device = devices[device];
  if (below(w, 4) == 0) args.byte_strides = turned, args.num_byte_strides = below(w, 20) ? 2 : 1;
  if (args.type != PJRT_Buffer_Type_F32) { /* only whether it is refused; larger elements would not fit */
    args.data = below(w, 2) ? NULL : memory;
    args.num_dims = 0;
    args.num_byte_strides = 0;
  }
  if (failed(CALL(Client_BufferFromHostBuffer, &args))) {
    free(memory);
    return;
  }
  if (args.type != PJRT_Buffer_Type_F32) {
    buffer other = {.handle = args.buffer};
    destroy_buffer(&other); /* first: an array that is used in place is done with its end */
    await(args.done_with_host_buffer);
    destroy_event(args.done_with_host_buffer);
    free(memory);
    return;
  }
  keep_event(w, args.done_with_host_buffer, memory, memory, 0, NULL);
  keep_buffer(w, args.buffer, node_make(w, KNOWN, value), shape, device);
}

static void to_host(worker *w) {
  buffer *from = any_buffer(w, -1, -1);
  if (from == NULL || !has_place(w)) return;
  size_t count = count_of(from->shape);
  float *memory = host_memory(count, -1);
  PJRT_Buffer_ToHostBuffer_Args args = START(PJRT_Buffer_ToHostBuffer_Args);
  int64_t order[2] = {0, 1};
  PJRT_Buffer_MemoryLayout layout = START(PJRT_Buffer_MemoryLayout);
  layout.type = PJRT_Buffer_MemoryLayout_Type_Tiled;
  layout.tiled.minor_to_major = order;
  layout.tiled.minor_to_major_size = 2;
  args.src = from->handle;
  args.dst = below(w, 30) ? memory : NULL;
  args.dst_size = count * sizeof(float);
  if (below(w, 30) == 0 && count) args.dst_size -= 1;
  if (below(w, 3) == 0) args.host_layout = &layout;
  if (failed(CALL(Buffer_ToHostBuffer, &args)) || args.event == NULL) {
    free(memory);
    return;
  }
  if (from->is_gone) die("a buffer that is gone was read");
  keep_event(w, args.event, memory, memory, count, from->node);
}

static void raw_to_host(worker *w) {
  buffer *from = any_buffer(w, -1, -1);
  if (from == NULL || !has_place(w)) return;
  float *memory = host_memory(ELEMENTS, -1);
  PJRT_Buffer_CopyRawToHost_Args args = START(PJRT_Buffer_CopyRawToHost_Args);
  args.buffer = from->handle;
  args.dst = memory;
  args.offset = (int64_t)below(w, 16) * 4 - (below(w, 30) == 0) * 8;
  args.transfer_size = (int64_t)below(w, 20) * 4;
  if (below(w, 30) == 0) args.offset = 1 << 30;
  if (failed(CALL(Buffer_CopyRawToHost, &args))) {
    free(memory);
    return;
  }
  keep_event(w, args.event, memory, memory, 0, NULL);
}

static void copy_buffer(worker *w) {
  buffer *from = any_buffer(w, -1, -1);
  if (from == NULL) return;
  int device = (int)below(w, (uint32_t)num_devices), shape = from->shape;
  node *same = from->node;
  PJRT_Buffer *made;
  if (below(w, 2)) {
    PJRT_Buffer_CopyToDevice_Args args = START(PJRT_Buffer_CopyToDevice_Args);
    args.buffer = from->handle;
    args.dst_device = below(w, 40) ? devices[device] : NULL;
    if (failed(CALL(Buffer_CopyToDevice, &args))) return;
    made = args.dst_buffer;
  } else {
    PJRT_Buffer_CopyToMemory_Args args = START(PJRT_Buffer_CopyToMemory_Args);
    args.buffer = from->handle;
    args.dst_memory = below(w, 40) ? memory_of(w, device) : NULL;
    if (failed(CALL(Buffer_CopyToMemory, &args))) return;
    made = args.dst_buffer;
  }
  if (from->is_gone) die("a buffer that is gone was copied");
  keep_buffer(w, made, node_of(w, 3, same, NULL), shape, device);
}

static void bitcast(worker *w) {
  static const int64_t dims[2] = {40, 3};
  buffer *from = any_buffer(w, 0, -1);
  if (from == NULL) return;
  PJRT_Buffer_Bitcast_Args args = START(PJRT_Buffer_Bitcast_Args);
  args.buffer = from->handle;
  args.element_type = PJRT_Buffer_Type_F32;
  args.dims = below(w, 5) ? dims : shapes[1];
  args.num_dims = 2;
  if (failed(CALL(Buffer_Bitcast, &args))) return;
  from->is_gone = true;
  buffer made = {.handle = args.out_buffer};
  destroy_buffer(&made);
}

static void other_buffers(worker *w) {
  int shape = below(w, 4) ? 0 : (int)below(w, 3), device = (int)below(w, (uint32_t)num_devices);
  if (below(w, 3) == 0) {
    PJRT_Client_CreateUninitializedBuffer_Args args = START(PJRT_Client_CreateUninitializedBuffer_Args);
    args.client = client;
    args.shape_dims = shapes[shape];
    args.shape_num_dims = 2;
    args.shape_element_type = PJRT_Buffer_Type_F32;
    args.device = devices[device];
    if (!failed(CALL(Client_CreateUninitializedBuffer, &args)))
      keep_buffer(w, args.buffer, node_make(w, ANYTHING, 0), shape, device);
  } else if (below(w, 2)) {
    PJRT_Client_CreateErrorBuffer_Args args = START(PJRT_Client_CreateErrorBuffer_Args);
    args.client = client;
    args.error_code = (PJRT_Error_Code)below(w, 17);
    args.error_message = "an error of the caller";
    args.error_message_size = strlen(args.error_message);
    args.shape_dims = shapes[shape];
    args.shape_num_dims = 2;
    args.shape_element_type = PJRT_Buffer_Type_F32;
    args.memory = memory_of(w, device);
    if (!failed(CALL(Client_CreateErrorBuffer, &args)))
      keep_buffer(w, args.buffer, node_make(w, FAILED, 0), shape, device);
  } else {
    float *memory = host_memory(ELEMENTS, 5);
    PJRT_Client_CreateViewOfDeviceBuffer_Args args = START(PJRT_Client_CreateViewOfDeviceBuffer_Args);
    args.client = client;
    args.device_buffer_ptr = memory;
    args.dims = shapes[0];
    args.num_dims = 2;
    args.element_type = PJRT_Buffer_Type_F32;
    args.device = devices[device];
    args.on_delete_callback = count_free;
    if (failed(CALL(Client_CreateViewOfDeviceBuffer, &args))) {
      free(memory);
      return;
    }
    atomic_fetch_add(&callbacks_wanted, 1);
    keep_buffer(w, args.buffer, node_make(w, KNOWN, 5), 0, device);
  }
}

static void end_buffers(worker *w) {
  buffer *each = any_buffer(w, -1, -1);
  if (each == NULL) return;
  if (below(w, 2)) {
    destroy_buffer(each);
    return;
  }
  PJRT_Buffer_Delete_Args args = START(PJRT_Buffer_Delete_Args);
  args.buffer = each->handle;
  failed(CALL(Buffer_Delete, &args));
  each->is_gone = true;
}

static void references(worker *w) {
  buffer *each = any_buffer(w, -1, -1);
  if (each == NULL) return;
  if (below(w, 2)) {
    PJRT_Buffer_IncreaseExternalReferenceCount_Args args = START(PJRT_Buffer_IncreaseExternalReferenceCount_Args);
    args.buffer = each->handle;
    if (!failed(CALL(Buffer_IncreaseExternalReferenceCount, &args))) ++each->external;
  } else {
    PJRT_Buffer_DecreaseExternalReferenceCount_Args args = START(PJRT_Buffer_DecreaseExternalReferenceCount_Args);
    args.buffer = each->handle;
    bool was_refused = failed(CALL(Buffer_DecreaseExternalReferenceCount, &args));
    if (was_refused != (each->external == 0)) die("external references are counted wrongly");
    if (!was_refused) --each->external;
  }
}

static void ask_buffer(worker *w) {
  buffer *each = any_buffer(w, -1, -1);
  if (each == NULL) return;
  PJRT_Buffer_IsDeleted_Args deleted = START(PJRT_Buffer_IsDeleted_Args);
  deleted.buffer = each->handle;
  failed(CALL(Buffer_IsDeleted, &deleted));
  if (deleted.is_deleted != each->is_gone) die("a buffer is deleted, or is not");
  PJRT_Buffer_OnDeviceSizeInBytes_Args size = START(PJRT_Buffer_OnDeviceSizeInBytes_Args);
  size.buffer = each->handle;
  failed(CALL(Buffer_OnDeviceSizeInBytes, &size));
  PJRT_Buffer_GetMemoryLayout_Args layout = START(PJRT_Buffer_GetMemoryLayout_Args);
  layout.buffer = each->handle;
  failed(CALL(Buffer_GetMemoryLayout, &layout));
  PJRT_Buffer_UnsafePointer_Args pointer = START(PJRT_Buffer_UnsafePointer_Args);
  pointer.buffer = each->handle;
  if (settle(each->node) == KNOWN) failed(CALL(Buffer_UnsafePointer, &pointer));
  PJRT_Device_MemoryStats_Args stats = START(PJRT_Device_MemoryStats_Args);
  stats.device = devices[each->device];
  failed(CALL(Device_MemoryStats, &stats));
}

static void ready_event(worker *w) {
  buffer *each = any_buffer(w, -1, -1);
  if (each == NULL) return;
  PJRT_Buffer_ReadyEvent_Args args = START(PJRT_Buffer_ReadyEvent_Args);
  args.buffer = each->handle;
  if (failed(CALL(Buffer_ReadyEvent, &args))) return;
  if (below(w, 2)) {
    PJRT_Event_OnReady_Args ready = START(PJRT_Event_OnReady_Args);
    ready.event = args.event;
    ready.callback = below(w, 30) ? count_callback : NULL;
    if (ready.callback) atomic_fetch_add(&callbacks_wanted, 1);
    if (failed(CALL(Event_OnReady, &ready)) && ready.callback) die("OnReady failed");
  } else if (settle(each->node) != OPEN && below(w, 2)) {
    if (!await(args.event) && settle(each->node) == FAILED) die("an error was lost");
  } else {
    PJRT_Event_Error_Args error = START(PJRT_Event_Error_Args);
    error.event = args.event;
    failed(CALL(Event_Error, &error));
  }
  destroy_event(args.event);
}

/* ---- programs -------------------------------------------------------------------------------------------------------------------*/
static void execute(worker *w) {
  int program = (int)below(w, MOST_EXECUTABLES);
  bool meets = program > 3;
  int count = program == 2 || meets ? 2 : 1, num_args = program == 1 || meets ? 1 : 2;
  if (executables[program] == NULL) return;
  buffer *used[2][2] = {{NULL}};
  PJRT_Buffer *given[2][2] = {{NULL}}, *made[2][1] = {{NULL}};
  for (int d = 0; d < count; ++d) {
    for (int i = 0; i < num_args; ++i) {
      used[d][i] = any_buffer(w, below(w, 40) ? 0 : -1, below(w, 40) ? d : -1);
      if (used[d][i] == NULL && below(w, 40)) return;
      given[d][i] = used[d][i] ? used[d][i]->handle : NULL;
      /* The next execution with collectives waits for it, also for what this thread ends behind that. */
      if (meets && used[d][i] && settle(used[d][i]->node) == OPEN) return;
    }
  }
  PJRT_Buffer *const *lists[2] = {given[0], given[1]};
  PJRT_Buffer **outputs[2] = {made[0], made[1]};
  PJRT_Event *events[2] = {NULL};
  int64_t kept[1] = {0};
  PJRT_ExecuteOptions options = START(PJRT_ExecuteOptions);
  options.launch_id = (int)below(w, 4);
  bool is_kept = below(w, 3) == 0;
  if (is_kept) options.non_donatable_input_indices = kept, options.num_non_donatable_input_indices = 1;
  PJRT_LoadedExecutable_Execute_Args args = START(PJRT_LoadedExecutable_Execute_Args);
  args.executable = executables[program];
  args.options = &options;
  args.argument_lists = lists;
  args.num_devices = (size_t)(below(w, 40) ? count : 1);
  args.num_args = (size_t)(below(w, 40) ? num_args : 1);
  args.output_lists = outputs;
  bool has_place_for_events = has_place(w) && below(w, 2);
  if (has_place_for_events) args.device_complete_events = events;
  if (failed(CALL(LoadedExecutable_Execute, &args))) return;
  node *results[2];
  for (int d = 0; d < count; ++d) {
    for (int i = 0; i < num_args; ++i) {
      if (used[d][i] == NULL || used[d][i]->is_gone || used[d][i]->shape != 0) die("a wrong argument was taken");
    }
    if (meets) results[d] = node_of(w, program + 1, used[0][0]->node, used[1][0]->node);
    else results[d] = node_of(w, program == 1 ? 2 : 1, used[d][0]->node, program == 1 ? NULL : used[d][1]->node);
    results[d]->may_fail = true; /* it may be poisoned */
  }
  if (program == 1 && !is_kept) used[0][0]->is_gone = true;
  for (int d = 0; d < count; ++d) {
    if (events[d]) keep_event(w, events[d], NULL, NULL, 0, NULL);
    keep_buffer(w, made[d][0], results[d], 0, d);
  }
}

static void poison(worker *w) {
  PJRT_Device_PoisonExecution_Args args = START(PJRT_Device_PoisonExecution_Args);
  args.device = devices[below(w, (uint32_t)num_devices)];
  args.launch_id = (int)below(w, 4);
  args.error_code = (PJRT_Error_Code)below(w, 17);
  args.error_message = "poison";
  args.error_message_size = 6;
  failed(CALL(Device_PoisonExecution, &args));
}

/* ---- what the caller ends -----------------------------------------------------------------------------------------------------------*/
static void alias(worker *w, bool is_end) {
  int number = (int)below(w, OTHERS);
  for (int i = 0; is_end && i < OTHERS; ++i) {
    if (w->aliases[i].handle) number = i;
  }
  if (w->aliases[number].handle == NULL) {
    int device = (int)below(w, (uint32_t)num_devices);
    PJRT_Client_CreateAliasBuffer_Args args = START(PJRT_Client_CreateAliasBuffer_Args);
    args.client = client;
    args.memory = memory_of(w, device);
    args.shape_dims = shapes[0];
    args.shape_num_dims = 2;
    args.shape_element_type = PJRT_Buffer_Type_F32;
    if (is_end || failed(CALL(Client_CreateAliasBuffer, &args))) return;
    w->aliases[number].handle = args.fulfill_alias_buffer_cb;
    w->aliases[number].device = device;
    w->aliases[number].node = node_make(w, OPEN, 0);
    keep_buffer(w, args.alias_buffer, w->aliases[number].node, 0, device);
    return;
  }
  buffer *target = below(w, 5) ? any_buffer(w, 0, w->aliases[number].device) : NULL;
  if (target && settle(target->node) == OPEN) target = NULL; /* it could be the alias itself */
  PJRT_Client_FulfillAliasBuffer_Args args = START(PJRT_Client_FulfillAliasBuffer_Args);
  args.client = client;
  args.fulfill_alias_buffer_cb = w->aliases[number].handle;
  args.buffer = target ? target->handle : NULL;
  args.status_code = target ? PJRT_Error_Code_OK : PJRT_Error_Code_ABORTED;
  args.error_message = "no buffer";
  args.error_message_size = 9;
  node *each = w->aliases[number].node;
  w->aliases[number].handle = NULL;
  if (failed(CALL(Client_FulfillAliasBuffer, &args)) || target == NULL) {
    each->state = FAILED;
    return;
  }
  each->op = 3;
  each->x = target->node;
  each->may_fail = true;
  settle(each);
}

static void donation(worker *w, bool is_end) {
  int number = (int)below(w, OTHERS);
  for (int i = 0; is_end && i < OTHERS; ++i) {
    if (w->donations[i].node) number = i;
  }
  PJRT_Buffer_DonateWithControlDependency_Args *args = &w->donations[number].args;
  if (w->donations[number].node == NULL) {
    buffer *from = is_end ? NULL : any_buffer(w, -1, -1);
    if (from == NULL) return;
    *args = (PJRT_Buffer_DonateWithControlDependency_Args)START(PJRT_Buffer_DonateWithControlDependency_Args);
    args->buffer = from->handle;
    if (failed(CALL(Buffer_DonateWithControlDependency, args))) return;
    if (from->is_gone || from->external) die("a buffer that is gone or lent was donated");
    from->is_gone = true;
    w->donations[number].node = node_of(w, 1, from->node, node_make(w, OPEN, 0));
    w->donations[number].node->op = 1; /* x/2 + y/4 with y open; it becomes x below */
    keep_buffer(w, args->out_buffer, w->donations[number].node, from->shape, from->device);
    return;
  }
  PJRT_Buffer_DonateWithControlDependency_Callback_Args done =
      START(PJRT_Buffer_DonateWithControlDependency_Callback_Args);
  done.callback_data = args->callback_data;
  done.error_code = below(w, 3) ? PJRT_Error_Code_OK : PJRT_Error_Code_ABORTED;
  done.error_message = "not this one";
  done.error_message_size = 12;
  node *each = w->donations[number].node;
  w->donations[number].node = NULL;
  args->dependency_ready_callback(&done);
  each->op = done.error_code ? 4 : 3;
  each->y = NULL;
  settle(each);
}

static void future(worker *w, bool is_end) {
  int number = (int)below(w, OTHERS);
  for (int i = 0; is_end && i < OTHERS; ++i) {
    if (w->futures[i].memory) number = i;
  }
  PJRT_Buffer_CopyRawToHostFuture_Args *args = &w->futures[number].args;
  if (w->futures[number].memory == NULL) {
    buffer *from = is_end ? NULL : any_buffer(w, -1, -1);
    if (from == NULL) return;
    *args = (PJRT_Buffer_CopyRawToHostFuture_Args)START(PJRT_Buffer_CopyRawToHostFuture_Args);
    args->buffer = from->handle;
    args->offset = (int64_t)below(w, 4) * 4;
    args->transfer_size = (int64_t)below(w, 10) * 4;
    if (failed(CALL(Buffer_CopyRawToHostFuture, args))) return;
    w->futures[number].memory = host_memory(ELEMENTS, 0);
    return;
  }
  if (!is_end && !has_place(w)) return;
  PJRT_Buffer_CopyRawToHostFuture_Callback_Args done = START(PJRT_Buffer_CopyRawToHostFuture_Callback_Args);
  done.callback_data = args->callback_data;
  done.error_code = below(w, 3) ? PJRT_Error_Code_OK : PJRT_Error_Code_ABORTED;
  done.error_message = "no place";
  done.error_message_size = 8;
  done.dst = below(w, 10) ? w->futures[number].memory : NULL;
  args->future_ready_callback(&done);
  if (is_end) {
    await(args->event);
    destroy_event(args->event);
    free(w->futures[number].memory);
  } else {
    keep_event(w, args->event, w->futures[number].memory, NULL, 0, NULL);
  }
  w->futures[number].memory = NULL;
}

static void settable(worker *w) {
  PJRT_Event **each = &w->settable[below(w, OTHERS)];
  if (*each == NULL) {
    PJRT_Event_Create_Args args = START(PJRT_Event_Create_Args);
    if (!failed(CALL(Event_Create, &args))) *each = args.event;
  } else if (below(w, 3) == 0) {
    destroy_event(*each);
    *each = NULL;
  } else {
    PJRT_Event_OnReady_Args ready = START(PJRT_Event_OnReady_Args);
    ready.event = *each;
    ready.callback = count_callback;
    atomic_fetch_add(&callbacks_wanted, 1);
    failed(CALL(Event_OnReady, &ready));
    PJRT_Event_Set_Args args = START(PJRT_Event_Set_Args);
    args.event = *each;
    args.error_code = (PJRT_Error_Code)below(w, 3);
    args.error_message = "set";
    args.error_message_size = 3;
    failed(CALL(Event_Set, &args));
  }
}

/* ---- transfers in pieces, and raw buffers -----------------------------------------------------------------------------------------*/
static void end_transfer(worker *w, transfer *each) {
  (void)w;
  PJRT_AsyncHostToDeviceTransferManager_Destroy_Args args = START(PJRT_AsyncHostToDeviceTransferManager_Destroy_Args);
  args.transfer_manager = each->handle;
  failed(CALL(AsyncHostToDeviceTransferManager_Destroy, &args));
  if (each->node->state == OPEN) each->node->state = FAILED;
  *each = (transfer){0};
}

static void transfer_in_pieces(worker *w) {
  transfer *each = &w->transfers[below(w, OTHERS)];
  if (each->handle == NULL) {
    int device = (int)below(w, (uint32_t)num_devices);
    PJRT_ShapeSpec spec = START(PJRT_ShapeSpec);
    spec.dims = shapes[0];
    spec.num_dims = 2;
    spec.element_type = PJRT_Buffer_Type_F32;
    PJRT_Client_CreateBuffersForAsyncHostToDevice_Args args = START(PJRT_Client_CreateBuffersForAsyncHostToDevice_Args);
    args.client = client;
    args.shape_specs = &spec;
    args.num_shape_specs = 1;
    args.memory = memory_of(w, device);
    if (!failed(CALL(Client_CreateBuffersForAsyncHostToDevice, &args)))
      *each = (transfer){args.transfer_manager, node_make(w, OPEN, 0), device, false, false};
    return;
  }
  switch (below(w, 6)) {
    case 0: {
      PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer_Args args =
          START(PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer_Args);
      args.transfer_manager = each->handle;
      args.buffer_index = below(w, 20) ? 0 : 3;
      if (failed(CALL(AsyncHostToDeviceTransferManager_RetrieveBuffer, &args))) return;
      if (each->is_retrieved) die("a buffer was retrieved twice");
      each->is_retrieved = true;
      keep_buffer(w, args.buffer_out, each->node, 0, each->device);
      return;
    }
    case 1:
      if (below(w, 3) == 0 && (each->is_last || each->node->state != OPEN)) end_transfer(w, each);
      return;
    case 2: {
      PJRT_AsyncHostToDeviceTransferManager_SetBufferError_Args args =
          START(PJRT_AsyncHostToDeviceTransferManager_SetBufferError_Args);
      args.transfer_manager = each->handle;
      args.error_code = PJRT_Error_Code_ABORTED;
      args.error_message = "given up";
      args.error_message_size = 8;
      if (each->is_last || below(w, 3)) return; /* whether it would come too late, nobody knows */
      if (!failed(CALL(AsyncHostToDeviceTransferManager_SetBufferError, &args)) && each->node->state == OPEN)
        each->node->state = FAILED;
      return;
    }
    default: {
      if (!has_place(w)) return;
      float *memory = host_memory(ELEMENTS, 2);
      PJRT_AsyncHostToDeviceTransferManager_TransferData_Args args =
          START(PJRT_AsyncHostToDeviceTransferManager_TransferData_Args);
      args.transfer_manager = each->handle;
      args.data = memory;
      args.offset = below(w, 2) ? 240 : 0;
      args.transfer_size = below(w, 30) ? 240 : 500;
      args.is_last_transfer = below(w, 3) == 0;
      if (failed(CALL(AsyncHostToDeviceTransferManager_TransferData, &args))) {
        free(memory);
        return;
      }
      if (each->is_last) die("a piece came after the last one");
      each->is_last = args.is_last_transfer;
      if (each->is_last && each->node->state == OPEN) each->node->state = ANYTHING;
      each->node->may_fail = true;
      keep_event(w, args.done_with_h2d_transfer, memory, NULL, 0, NULL);
    }
  }
}

static void destroy_raw(PJRT_RawBuffer *raw) {
  PJRT_RawBuffer_Destroy_Args args = START(PJRT_RawBuffer_Destroy_Args);
  args.buffer = raw;
  failed(raw_api->PJRT_RawBuffer_Destroy(&args));
}

static void raw(worker *w) {
  if (raw_api == NULL) return;
  int number = (int)below(w, OTHERS);
  if (w->raws[number].handle == NULL) {
    buffer *from = any_buffer(w, -1, -1);
    if (from == NULL) return;
    PJRT_RawBuffer_CreateRawAliasOfBuffer_Args args = START(PJRT_RawBuffer_CreateRawAliasOfBuffer_Args);
    args.buffer = from->handle;
    if (failed(raw_api->PJRT_RawBuffer_CreateRawAliasOfBuffer(&args))) return;
    w->raws[number].handle = args.raw_buffer;
    w->raws[number].node = from->node;
    return;
  }
  if (below(w, 4) == 0) {
    destroy_raw(w->raws[number].handle);
    w->raws[number].handle = NULL;
    return;
  }
  if (!has_place(w)) return;
  float *memory = host_memory(ELEMENTS, 3);
  if (below(w, 2)) {
    PJRT_RawBuffer_CopyRawDeviceToHost_Args args = START(PJRT_RawBuffer_CopyRawDeviceToHost_Args);
    args.buffer = w->raws[number].handle;
    args.dst = memory;
    args.transfer_size = below(w, 30) ? 8 : 1 << 30;
    if (failed(raw_api->PJRT_RawBuffer_CopyRawDeviceToHost(&args))) free(memory);
    else keep_event(w, args.event, memory, NULL, 0, NULL);
  } else {
    /* What is written is seen by all who share the memory. */
    if (settle(w->raws[number].node) != ANYTHING) {
      free(memory);
      return;
    }
    PJRT_RawBuffer_CopyRawHostToDevice_Args args = START(PJRT_RawBuffer_CopyRawHostToDevice_Args);
    args.buffer = w->raws[number].handle;
    args.src = memory;
    args.transfer_size = below(w, 30) ? 8 : -8;
    if (failed(raw_api->PJRT_RawBuffer_CopyRawHostToDevice(&args))) free(memory);
    else keep_event(w, args.event, memory, NULL, 0, NULL);
  }
}

/* ---- sessions of profilers: one of each thread at a time --------------------------------------------------------------------------------*/
static void no_error(PLUGIN_Profiler_Error *error) {
  if (error) die("a profiler failed");
}

static void end_profiler(worker *w) {
  PLUGIN_Profiler_CollectData_Args collect = START(PLUGIN_Profiler_CollectData_Args);
  collect.profiler = w->profiler.handle;
  no_error(profiler_api->collect_data(&collect));
  size_t size = collect.buffer_size_in_bytes;
  collect.buffer = malloc(size + 1);
  no_error(profiler_api->collect_data(&collect));
  free(collect.buffer);
  PLUGIN_Profiler_Destroy_Args destroy = START(PLUGIN_Profiler_Destroy_Args);
  destroy.profiler = w->profiler.handle;
  no_error(profiler_api->destroy(&destroy));
  w->profiler.handle = NULL;
}

static void profile(worker *w) {
  PLUGIN_Profiler_Destroy_Args args = START(PLUGIN_Profiler_Destroy_Args);
  args.profiler = w->profiler.handle;
  if (args.profiler == NULL) {
    PLUGIN_Profiler_Create_Args create = START(PLUGIN_Profiler_Create_Args);
    no_error(profiler_api->create(&create));
    w->profiler.handle = create.profiler;
  } else if (below(w, 4) == 0) {
    end_profiler(w);
    w->profiler.runs = false;
  } else {
    no_error(w->profiler.runs ? profiler_api->stop(&args) : profiler_api->start(&args));
    w->profiler.runs = !w->profiler.runs;
  }
}

/* ---- the whole -----------------------------------------------------------------------------------------------------------------------*/
static void step(worker *w) {
  switch (below(w, 20)) {
    case 0: case 1: case 2: from_host(w); break;
    case 3: case 4: case 5: case 6: execute(w); break;
    case 7: case 8: to_host(w); break;
    case 9: copy_buffer(w); break;
    case 10: end_buffers(w); break;
    case 11: below(w, 4) ? ready_event(w) : profile(w); break;
    case 12: ask_buffer(w); break;
    case 13: below(w, 2) ? references(w) : raw(w); break;
    case 14: other_buffers(w); break;
    case 15: below(w, 2) ? alias(w, false) : settable(w); break;
    case 16: donation(w, false); break;
    case 17: below(w, 4) ? future(w, false) : poison(w); break;
    case 18: transfer_in_pieces(w); break;
    default: below(w, 4) ? raw_to_host(w) : bitcast(w); break;
  }
}

static void finish(worker *w) {
  for (int i = 0; i < OTHERS; ++i) {
    alias(w, true);
    donation(w, true);
    if (w->transfers[i].handle) end_transfer(w, &w->transfers[i]);
    destroy_event(w->settable[i]);
    if (w->raws[i].handle) destroy_raw(w->raws[i].handle);
  }
  if (w->profiler.handle) end_profiler(w);
  for (int i = 0; i < OTHERS; ++i) future(w, true); /* it waits for what was open until now */
  for (int i = 0; i < BUFFERS; ++i) destroy_buffer(&w->buffers[i]);
  for (int i = 0; i < EVENTS; ++i) {
    if (w->events[i].event) end_pending(&w->events[i]);
  }
  while (w->nodes) {
    node *next = w->nodes->next;
    free(w->nodes);
    w->nodes = next;
  }
}

static void *work(void *arg) {
  worker *w = arg;
  while (atomic_fetch_sub(&calls_left, 1) > 0) step(w);
  finish(w);
  return NULL;
}

/* What a fork does while the threads of its parent call: it has none of them, nor those of devices. */
static void call_in_fork(worker *w) {
  alarm(60); /* a call that hangs ends the fork */
  may_fail = true;
  for (int i = 0; i < 500; ++i) step(w);
  finish(w);
  PJRT_Client_Destroy_Args end = START(PJRT_Client_Destroy_Args);
  end.client = client;
  failed(CALL(Client_Destroy, &end));
  exit(0);
}

static void end_in_the_middle(const char *end, uint64_t seed, uint32_t calls) {
  static worker own;
  own.random = seed;
  for (long until = (long)below(&own, calls + 1); atomic_load(&calls_left) > until;) sched_yield();
  if (strcmp(end, "exit") == 0) exit(0);
  pid_t fork_of_this = fork();
  if (fork_of_this == 0) call_in_fork(&own);
  int status = 0;
  if (waitpid(fork_of_this, &status, 0) != fork_of_this || status) {
    fprintf(stderr, "random_calls: the fork ended with status %d\n", status);
    abort();
  }
}

/* The handler of the program in steps: half of its argument, or an error. */
static XLA_FFI_Error *halve(XLA_FFI_CallFrame *frame) {
  for (XLA_FFI_Metadata_Extension *each = frame->extension_start; each;) {
    each->metadata->api_version.major_version = XLA_FFI_API_MAJOR;
    return NULL;
  }
  static atomic_int times;
  if (may_fail && atomic_fetch_add(&times, 1) % 50 == 0)
    return frame->api->Error_Create(&(XLA_FFI_Error_Create_Args){
        .struct_size = sizeof(XLA_FFI_Error_Create_Args), .message = "the handler was told to fail", .errc = 13});
  const float *x = ((XLA_FFI_Buffer *)frame->args.values[0])->data;
  float *out = ((XLA_FFI_Buffer *)frame->rets.values[0])->data;
  for (size_t i = 0; i < ELEMENTS; ++i) out[i] = x[i] / 2;
  return NULL;
}

static void load(int number, const char *path) {
  FILE *file = fopen(path, "rb");
  if (file == NULL) die("no such executable");
  static char data[1 << 20];
  PJRT_Executable_DeserializeAndLoad_Args args = START(PJRT_Executable_DeserializeAndLoad_Args);
  args.client = client;
  args.serialized_executable = data;
  args.serialized_executable_size = fread(data, 1, sizeof data, file);
  fclose(file);
  if (failed(CALL(Executable_DeserializeAndLoad, &args))) die("an executable cannot be loaded");
  executables[number] = args.loaded_executable;
}

/* Work whose results nobody has any more may still be under way; memory that nobody frees makes the round hang. */
static void wait_for_no_memory(void) {
  for (size_t i = 0; i < num_devices; ++i) {
    PJRT_Device_MemoryStats_Args stats = START(PJRT_Device_MemoryStats_Args);
    stats.device = devices[i];
    do {
      sched_yield();
      failed(CALL(Device_MemoryStats, &stats));
    } while (stats.bytes_in_use);
  }
}

int main(int argc, char **argv) {
  if (argc < 7) return 2;
  void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) die(dlerror());
  const PJRT_Api *(*get)(void) = (const PJRT_Api *(*)(void))dlsym(library, "GetPjrtApi");
  api = get();
  for (PJRT_Extension_Base *each = api->extension_start; each; each = each->next) {
    if (each->type == PJRT_Extension_Type_RawBuffer) raw_api = (const PJRT_RawBuffer_Extension *)each;
    if (each->type == PJRT_Extension_Type_Profiler) profiler_api = ((PJRT_Profiler_Extension *)each)->profiler_api;
    if (each->type != PJRT_Extension_Type_FFI) continue;
    PJRT_FFI_Register_Handler_Args handler = START(PJRT_FFI_Register_Handler_Args);
    handler.target_name = "halve";
    handler.target_name_size = 5;
    handler.handler = (void *)halve;
    if (failed(((PJRT_FFI_Extension *)each)->register_handler(&handler))) die("no handler");
  }
  PJRT_NamedValue patience = START(PJRT_NamedValue);
  patience.name = "watchdog_seconds";
  patience.name_size = strlen(patience.name);
  patience.type = PJRT_NamedValue_kFloat;
  patience.float_value = (float)atof(argv[5]) / 1000;
  patience.value_size = 1;
  may_fail = getenv("FAULTS") != NULL || patience.float_value > 0;
  PJRT_Client_Create_Args create = START(PJRT_Client_Create_Args);
  create.create_options = &patience;
  create.num_options = patience.float_value > 0;
  if (failed(CALL(Client_Create, &create))) die("no client");
  client = create.client;
  PJRT_Client_AddressableDevices_Args all = START(PJRT_Client_AddressableDevices_Args);
  all.client = client;
  failed(CALL(Client_AddressableDevices, &all));
  devices = all.addressable_devices;
  num_devices = all.num_addressable_devices;
  for (int i = 6; i < argc && i - 6 < MOST_EXECUTABLES; ++i) load(i - 6, argv[i]);
  enum { MOST_THREADS = 16 };
  int threads = atoi(argv[4]) < MOST_THREADS ? atoi(argv[4]) : MOST_THREADS;
  pthread_t running[MOST_THREADS];
  static worker workers[MOST_THREADS];
  atomic_store(&calls_left, atol(argv[3]));
  for (int i = 0; i < threads; ++i) {
    workers[i].random = strtoull(argv[2], NULL, 10) * 1000003 + (uint64_t)i;
    pthread_create(&running[i], NULL, work, &workers[i]);
  }
  if (getenv("END")) end_in_the_middle(getenv("END"), strtoull(argv[2], NULL, 10), (uint32_t)atol(argv[3]));
  for (int i = 0; i < threads; ++i) pthread_join(running[i], NULL);
  for (int i = 0; i < MOST_EXECUTABLES; ++i) {
    PJRT_LoadedExecutable_Destroy_Args destroy = START(PJRT_LoadedExecutable_Destroy_Args);
    destroy.executable = executables[i];
    if (destroy.executable) failed(CALL(LoadedExecutable_Destroy, &destroy));
  }
  PJRT_Client_Destroy_Args end = START(PJRT_Client_Destroy_Args);
  end.client = client;
  if (atof(argv[5]) == 0) wait_for_no_memory();
  failed(CALL(Client_Destroy, &end));
  /* The watchdog may still tell of work that it gave up: such a client is closed by another thread. */
  for (int i = 0; atof(argv[5]) && i < 10000 && atomic_load(&callbacks_seen) < atomic_load(&callbacks_wanted); ++i)
    usleep(1000);
  if (atomic_load(&callbacks_seen) != atomic_load(&callbacks_wanted)) die("a callback was not called once");
  printf("%s calls, %ld errors, %ld callbacks\n", argv[3], atomic_load(&refusals), atomic_load(&callbacks_seen));
  return 0;
}
