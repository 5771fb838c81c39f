/* Rules about the life of handles. */
#include <pthread.h>
#include <semaphore.h>

#include "program.h"

static void use_after_destroy(void) {
  PJRT_Client *client = make_client();
  PJRT_Buffer *buffer = make_buffer(client);
  destroy_buffer(buffer);
  BREAK(Buffer_Dimensions, dimensions, .buffer = buffer);
  EXPECT(dimensions.dims == NULL && dimensions.num_dims == 0);
  destroy_client(client);
}

static void double_destroy(void) {
  PJRT_Client *client = make_client();
  PJRT_Buffer *buffer = make_buffer(client);
  destroy_buffer(buffer);
  BREAK(Buffer_Destroy, destroy, .buffer = buffer);
  destroy_client(client);
}

static void use_after_delete(void) {
  PJRT_Client *client = make_client();
  PJRT_Buffer *buffer = make_buffer(client);
  float data[4];
  CALL(Buffer_Delete, delete, .buffer = buffer);
  CALL(Buffer_IsDeleted, deleted, .buffer = buffer);
  CALL(Buffer_Dimensions, dimensions, .buffer = buffer);
  BREAK(Buffer_ToHostBuffer, get, .src = buffer, .dst = data, .dst_size = sizeof data);
  destroy_buffer(buffer);
  destroy_client(client);
}

/* What a framework does that gives a donated array to a second execution: it first asks for the memory. Plugins of
 * vendors end the process there. */
static void use_after_donation(void) {
  PJRT_Client *client = make_client();
  PJRT_LoadedExecutable *loaded = compile(client, DONATE);
  PJRT_Buffer *buffer = make_buffer(client), *output;
  check(execute(loaded, &buffer, 1, &output), __FILE__, __LINE__, "execute");
  CALL(Buffer_IsDeleted, deleted, .buffer = buffer);
  EXPECT(deleted.is_deleted);
  BREAK(Buffer_Memory, memory, .buffer = buffer);
  await_buffer(output);
  destroy_buffer(output);
  destroy_buffer(buffer);
  destroy_loaded(loaded);
  destroy_client(client);
}

static void use_after_consume(void) {
  PJRT_Client *client = make_client();
  PJRT_Buffer *buffer = make_buffer(client);
  const int64_t dims[] = {4};
  CALL(Client_CreateAliasBuffer, alias, .client = client, .memory = memory_of(device_of(client, 0)), .shape_dims = dims,
       .shape_num_dims = 1, .shape_element_type = PJRT_Buffer_Type_F32);
  CALL(Client_FulfillAliasBuffer, fulfill, .client = client, .buffer = buffer,
       .fulfill_alias_buffer_cb = alias.fulfill_alias_buffer_cb);
  BREAK(Client_FulfillAliasBuffer, again, .client = client, .buffer = buffer,
        .fulfill_alias_buffer_cb = alias.fulfill_alias_buffer_cb);
  await_buffer(alias.alias_buffer);
  destroy_buffer(alias.alias_buffer);
  destroy_buffer(buffer);
  destroy_client(client);
}

/* The leak is found as well: it is the same mistake, seen earlier. */
static void use_after_client(void) {
  PJRT_Client *client = make_client();
  PJRT_Buffer *buffer = make_buffer(client);
  await_buffer(buffer);
  destroy_client(client);
  BREAK(Buffer_Dimensions, dimensions, .buffer = buffer);
  destroy_buffer(buffer);
}

static void unknown_handle(void) {
  int number = 0;
  BREAK(Buffer_Dimensions, dimensions, .buffer = (PJRT_Buffer *)&number);
}

static void wrong_kind(void) {
  PJRT_Client *client = make_client();
  PJRT_Buffer *buffer = make_buffer(client);
  BREAK(Event_Await, await, .event = (PJRT_Event *)buffer);
  destroy_buffer(buffer);
  destroy_client(client);
}

static void foreign_client(void) {
  PJRT_Client *client = make_client(), *other = make_client();
  PJRT_Buffer *buffer = make_buffer(client);
  await_buffer(buffer);
  ARGS(Buffer_CopyToDevice, copy, .buffer = buffer, .dst_device = device_of(other, 0));
  broken(api->PJRT_Buffer_CopyToDevice(&copy));
  if (copy.dst_buffer != NULL) {
    await_buffer(copy.dst_buffer);
    destroy_buffer(copy.dst_buffer);
  }
  destroy_buffer(buffer);
  destroy_client(other);
  destroy_client(client);
}

static void foreign_plugin(void) {
  const PJRT_Api *first = api, *second = wrap_another();
  PJRT_Client *client = make_client();
  api = second;
  BREAK(Client_ProcessIndex, index, .client = client);
  api = first;
  destroy_client(client);
}

static void null_handle(void) { BREAK(Client_ProcessIndex, index, .client = NULL); }

static void destroys_borrowed(void) {
  PJRT_Client *client = make_client();
  CALL(Client_TopologyDescription, topology, .client = client);
  BREAK(TopologyDescription_Destroy, destroy, .topology = topology.topology);
  destroy_client(client);
}

/* ---- another thread -----------------------------------------------------------------------------------------------*/
static sem_t inside, leave;
static const int64_t four[] = {4};

static PJRT_Error *slow_dimensions(PJRT_Buffer_Dimensions_Args *args) {
  sem_post(&inside);
  sem_wait(&leave);
  args->dims = four;
  args->num_dims = 1;
  return NULL;
}

static void *ask_dimensions(void *buffer) {
  CALL(Buffer_Dimensions, dimensions, .buffer = buffer);
  return NULL;
}

static void destroyed_during_call(void) {
  pthread_t thread;
  changed.PJRT_Buffer_Dimensions = slow_dimensions;
  wrap();
  sem_init(&inside, 0, 0);
  sem_init(&leave, 0, 0);
  PJRT_Client *client = make_client();
  PJRT_Buffer *buffer = make_buffer(client);
  pthread_create(&thread, NULL, ask_dimensions, buffer);
  sem_wait(&inside);
  ARGS(Buffer_Destroy, destroy, .buffer = buffer);
  PJRT_Error *error = api->PJRT_Buffer_Destroy(&destroy);
  const bool refused = error != NULL;
  broken(error);
  sem_post(&leave);
  pthread_join(thread, NULL);
  if (refused) destroy_buffer(buffer);
  destroy_client(client);
}

static void leak(void) {
  PJRT_Client *client = make_client();
  for (int i = 0; i < 3; i++) await_buffer(make_buffer(client));
  BREAK(Client_Destroy, destroy, .client = client);
}

/* The process ends by exit, which is the breach: its stack has the main function of this program. */
static void client_left(void) {
  PJRT_Client *client = make_client();
  BREAK(Client_ProcessIndex, last, .client = client);
  exit(0);
}

static void event_left(void) {
  PJRT_Client *client = make_client();
  PJRT_Buffer *buffer = make_buffer(client);
  CALL(Buffer_ReadyEvent, ready, .buffer = buffer);
  CALL(Event_Await, await, .event = ready.event);
  destroy_buffer(buffer);
  BREAK(Client_Destroy, destroy, .client = client);
  destroy_event(ready.event);
}

const rule_case handle_cases[] = {
    {"use-after-destroy", use_after_destroy, false},
    {"double-destroy", double_destroy, false},
    {"use-after-delete", use_after_delete, false},
    {"use-after-donation", use_after_donation, false},
    {"use-after-consume", use_after_consume, false},
    {"use-after-client", use_after_client, false},
    {"unknown-handle", unknown_handle, false},
    {"wrong-kind", wrong_kind, false},
    {"foreign-client", foreign_client, false},
    {"foreign-plugin", foreign_plugin, false},
    {"null-handle", null_handle, false},
    {"destroys-borrowed", destroys_borrowed, false},
    {"destroyed-during-call", destroyed_during_call, true},
    {"leak", leak, false},
    {"client-left", client_left, false},
    {"event-left", event_left, false},
    {NULL, NULL, false},
};
