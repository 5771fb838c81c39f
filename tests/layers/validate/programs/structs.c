/* Rules about argument structs. */
#include <sys/mman.h>

#include "program.h"

static void null_arguments(void) { broken(api->PJRT_Client_ProcessIndex(NULL)); }

static void unreadable_memory(void) {
  void *page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  broken(api->PJRT_Client_ProcessIndex(page));
}

static void struct_size_zero(void) {
  PJRT_Client *client = make_client();
  PJRT_Client_ProcessIndex_Args args = {.client = client};
  broken(api->PJRT_Client_ProcessIndex(&args));
  destroy_client(client);
}

static void struct_size_short(void) {
  PJRT_Client *client = make_client();
  ARGS(Client_ProcessIndex, args, .client = client);
  args.struct_size = offsetof(PJRT_Client_ProcessIndex_Args, client);
  broken(api->PJRT_Client_ProcessIndex(&args));
  destroy_client(client);
}

static void struct_size_long(void) {
  PJRT_Client *client = make_client();
  ARGS(Client_ProcessIndex, args, .client = client);
  args.struct_size = (size_t)1 << 40;
  broken(api->PJRT_Client_ProcessIndex(&args));
  destroy_client(client);
}

static void extension_chain(void) {
  PJRT_Client *client = make_client();
  PJRT_Extension_Base link = {.struct_size = PJRT_Extension_Base_STRUCT_SIZE, .type = PJRT_Extension_Type_Unknown};
  link.next = &link; /* it never ends */
  BREAK(Client_ProcessIndex, args, .client = client, .extension_start = &link);
  destroy_client(client);
}

static void null_array(void) { BREAK(Client_Create, create, .create_options = NULL, .num_options = 2); }

static void null_pointer(void) {
  PJRT_Client *client = make_client();
  BREAK(Client_Compile, compile, .client = client, .program = NULL);
  destroy_client(client);
}

static void null_callback(void) {
  PJRT_Event *event = set_event();
  BREAK(Event_OnReady, on_ready, .event = event, .callback = NULL);
  destroy_event(event);
}

/* A buffer of the host with one wrong argument. */
#define WRONG_BUFFER(...)                                                                                       \
  PJRT_Client *client = make_client();                                                                          \
  static const float data[] = {1, 2, 3, 4};                                                                     \
  const int64_t dims[] = {4};                                                                                   \
  ARGS(Client_BufferFromHostBuffer, put, .client = client, .data = data, .type = PJRT_Buffer_Type_F32, .dims = dims, \
       .num_dims = 1, .host_buffer_semantics = PJRT_HostBufferSemantics_kImmutableOnlyDuringCall);              \
  __VA_ARGS__;                                                                                                  \
  PJRT_Error *error = api->PJRT_Client_BufferFromHostBuffer(&put);                                              \
  const bool success = error == NULL;                                                                           \
  broken(error);                                                                                                \
  if (success) {                                                                                                \
    CALL(Event_Await, await, .event = put.done_with_host_buffer);                                               \
    destroy_event(put.done_with_host_buffer);                                                                   \
    destroy_buffer(put.buffer);                                                                                 \
  }                                                                                                             \
  destroy_client(client)

static void enum_out_of_range(void) {
  WRONG_BUFFER(put.device = device_of(client, 0), put.type = (PJRT_Buffer_Type)99);
}

static void negative_size(void) {
  const int64_t negative[] = {-4};
  WRONG_BUFFER(put.device = device_of(client, 0), put.dims = negative);
}

static void no_place(void) {
  WRONG_BUFFER(put.device = NULL, put.memory = NULL);
}

static void two_places(void) {
  WRONG_BUFFER(put.device = device_of(client, 0), put.memory = memory_of(device_of(client, 1)));
}

static void strides_count(void) {
  const int64_t strides[] = {16, 4};
  WRONG_BUFFER(put.device = device_of(client, 0), put.byte_strides = strides, put.num_byte_strides = 2);
}

static void named_value(void) {
  PJRT_NamedValue option = {.struct_size = PJRT_NamedValue_STRUCT_SIZE, .name = "num_devices", .name_size = 11,
                            .type = PJRT_NamedValue_kInt64, .int64_value = 1, .value_size = 7};
  ARGS(Client_Create, create, .create_options = &option, .num_options = 1);
  broken(api->PJRT_Client_Create(&create));
  if (create.client != NULL) destroy_client(create.client);
}

const rule_case struct_cases[] = {
    {"null-arguments", null_arguments, false},
    {"unreadable-memory", unreadable_memory, false},
    {"struct-size-zero", struct_size_zero, false},
    {"struct-size-short", struct_size_short, false},
    {"struct-size-long", struct_size_long, false},
    {"extension-chain", extension_chain, false},
    {"null-array", null_array, false},
    {"null-pointer", null_pointer, false},
    {"null-callback", null_callback, false},
    {"enum-out-of-range", enum_out_of_range, false},
    {"negative-size", negative_size, false},
    {"no-place", no_place, false},
    {"two-places", two_places, false},
    {"strides-count", strides_count, false},
    {"named-value", named_value, false},
    {NULL, NULL, false},
};
