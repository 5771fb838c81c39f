/* Rules about events and callbacks. */
#include "program.h"

/* A copy to the host that cannot end while the plugin is held. */
static PJRT_Event *pending_copy(PJRT_Buffer *buffer) {
  static float data[4];
  await_buffer(buffer);
  hold(true);
  CALL(Buffer_ToHostBuffer, get, .src = buffer, .dst = data, .dst_size = sizeof data);
  return get.event;
}

static void event_not_ready(void) {
  PJRT_Client *client = make_client();
  PJRT_Buffer *buffer = make_buffer(client);
  PJRT_Event *event = pending_copy(buffer);
  BREAK(Event_Error, error, .event = event);
  hold(false);
  CALL(Event_Await, await, .event = event);
  destroy_event(event);
  destroy_buffer(buffer);
  destroy_client(client);
}

static void event_set_twice(void) {
  PJRT_Event *event = set_event();
  BREAK(Event_Set, set, .event = event);
  destroy_event(event);
}

static void event_not_settable(void) {
  PJRT_Client *client = make_client();
  PJRT_Buffer *buffer = make_buffer(client);
  CALL(Buffer_ReadyEvent, ready, .buffer = buffer);
  BREAK(Event_Set, set, .event = ready.event);
  CALL(Event_Await, await, .event = ready.event);
  destroy_event(ready.event);
  destroy_buffer(buffer);
  destroy_client(client);
}

static void event_destroyed_unset(void) {
  CALL(Event_Create, create);
  BREAK(Event_Destroy, destroy, .event = create.event);
}

static void event_destroyed_early(void) {
  PJRT_Client *client = make_client();
  PJRT_Buffer *buffer = make_buffer(client);
  PJRT_Event *event = pending_copy(buffer);
  BREAK(Event_Destroy, destroy, .event = event);
  hold(false);
  destroy_buffer(buffer);
  destroy_client(client);
}

/* ---- callbacks ----------------------------------------------------------------------------------------------------*/
static void destroy_error(PJRT_Error *error) {
  ARGS(Error_Destroy, destroy, .error = error);
  api->PJRT_Error_Destroy(&destroy);
}

static void destroy_own_event(PJRT_Error *error, void *event) {
  destroy_error(error);
  BREAK(Event_Destroy, destroy, .event = event);
}

static void event_destroyed_in_callback(void) {
  PJRT_Event *event = set_event();
  CALL(Event_OnReady, on_ready, .event = event, .callback = destroy_own_event, .user_arg = event);
}

/* So that the wait ends in spite of all: the plugin sets the event before it waits for it. */
static PJRT_Error *set_and_await(PJRT_Event_Await_Args *args) {
  ARGS(Event_Set, set, .event = args->event);
  EXPECT(plugin->PJRT_Event_Set(&set) == NULL);
  return plugin->PJRT_Event_Await(args);
}

static void await_other_event(PJRT_Error *error, void *event) {
  destroy_error(error);
  BREAK(Event_Await, await, .event = event);
}

static void wait_in_callback(void) {
  changed.PJRT_Event_Await = set_and_await;
  wrap();
  PJRT_Event *ready = set_event();
  CALL(Event_Create, unset);
  CALL(Event_OnReady, on_ready, .event = ready, .callback = await_other_event, .user_arg = unset.event);
  ARGS(Event_IsReady, is_ready, .event = unset.event);
  check(api->PJRT_Event_IsReady(&is_ready), __FILE__, __LINE__, "IsReady");
  if (is_ready.is_ready) { /* the layer does not know that the plugin set it */
    ARGS(Event_Destroy, destroy, .event = unset.event);
    check(plugin->PJRT_Event_Destroy(&destroy), __FILE__, __LINE__, "Destroy");
  } else {
    CALL(Event_Set, set, .event = unset.event);
    destroy_event(unset.event);
  }
  destroy_event(ready);
}

static void destroy_client_there(PJRT_Error *error, void *client) {
  destroy_error(error);
  ARGS(Client_Destroy, destroy, .client = client);
  PJRT_Error *refused = api->PJRT_Client_Destroy(&destroy);
  const bool lives = refused != NULL;
  broken(refused);
  if (lives) *(PJRT_Client **)client = client;
}

static void client_destroyed_in_callback(void) {
  PJRT_Event *event = set_event();
  PJRT_Client *client = make_client();
  CALL(Event_OnReady, on_ready, .event = event, .callback = destroy_client_there, .user_arg = client);
  destroy_event(event);
}

static void count_call(PJRT_Error *error, void *calls) {
  destroy_error(error);
  ++*(int *)calls;
}

static PJRT_Error *on_ready_twice(PJRT_Event_OnReady_Args *args) {
  args->callback(NULL, args->user_arg);
  args->callback(NULL, args->user_arg);
  return NULL;
}

static void callback_twice(void) {
  int calls = 0;
  changed.PJRT_Event_OnReady = on_ready_twice;
  wrap();
  PJRT_Event *event = set_event();
  BREAK(Event_OnReady, on_ready, .event = event, .callback = count_call, .user_arg = &calls);
  EXPECT(calls == 1);
  destroy_event(event);
}

const rule_case event_cases[] = {
    {"event-not-ready", event_not_ready, false},
    {"event-set-twice", event_set_twice, false},
    {"event-not-settable", event_not_settable, false},
    {"event-destroyed-unset", event_destroyed_unset, false},
    {"event-destroyed-early", event_destroyed_early, false},
    {"event-destroyed-in-callback", event_destroyed_in_callback, false},
    {"wait-in-callback", wait_in_callback, true},
    {"client-destroyed-in-callback", client_destroyed_in_callback, false},
    {"callback-twice", callback_twice, true},
    {NULL, NULL, false},
};
