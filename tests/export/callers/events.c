/* Events: those of the plugin and those that the caller makes. */
#include <pthread.h>

#include "caller.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int calls;
static PJRT_Error_Code last_code;

static void count(PJRT_Error *error, void *expected) {
  MUST(expected == &calls);
  pthread_mutex_lock(&mutex);
  calls++;
  last_code = error == NULL ? PJRT_Error_Code_OK : code_of(error);
  free_error(error);
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&mutex);
}

static void watch(PJRT_Event *event) {
  START(PJRT_Event_OnReady_Args, args);
  args.event = event;
  args.callback = count;
  args.user_arg = &calls;
  ok(api->PJRT_Event_OnReady(&args));
}

static void wait_for_calls(int expected) {
  pthread_mutex_lock(&mutex);
  while (calls < expected) pthread_cond_wait(&changed, &mutex);
  MUST(calls == expected);
  pthread_mutex_unlock(&mutex);
}

/* As JAX does: the event is destroyed right after a callback was added to it. */
void an_event_destroyed_after_on_ready(void) {
  PJRT_Client *client = new_client();
  PJRT_LoadedExecutable *executable = compile(client, DOUBLE);
  PJRT_Buffer *input = put(client, INPUT);
  for (int i = 0; i < 100; i++) {
    PJRT_Buffer *result = NULL;
    PJRT_Event *complete = NULL;
    ok(try_run(executable, NULL, &input, 1, &result, &complete));
    watch(complete);
    destroy_event(complete);
    destroy_buffer(result);
  }
  wait_for_calls(100);
  MUST(last_code == PJRT_Error_Code_OK);
  destroy_buffer(input);
  destroy_executable(executable);
  destroy_client(client);
}

static PJRT_Event *new_event(void) {
  START(PJRT_Event_Create_Args, args);
  ok(api->PJRT_Event_Create(&args));
  return args.event;
}

static PJRT_Error *set(PJRT_Event *event, PJRT_Error_Code code, const char *message) {
  START(PJRT_Event_Set_Args, args);
  args.event = event;
  args.error_code = code;
  args.error_message = message;
  args.error_message_size = strlen(message);
  return api->PJRT_Event_Set(&args);
}

void events_of_the_caller(void) {
  PJRT_Event *event = new_event();
  START(PJRT_Event_IsReady_Args, ready);
  ready.event = event;
  ok(api->PJRT_Event_IsReady(&ready));
  MUST(!ready.is_ready);
  START(PJRT_Event_Error_Args, early);
  early.event = event;
  fails(api->PJRT_Event_Error(&early), PJRT_Error_Code_FAILED_PRECONDITION);
  watch(event);
  ok(set(event, PJRT_Error_Code_DATA_LOSS, "it is lost"));
  wait_for_calls(1);
  MUST(last_code == PJRT_Error_Code_DATA_LOSS);
  fails(set(event, PJRT_Error_Code_OK, ""), PJRT_Error_Code_FAILED_PRECONDITION);
  PJRT_Error *error = outcome(event);
  MUST(says(error, "it is lost"));
  fails(error, PJRT_Error_Code_DATA_LOSS);

  /* Destroyed before it was set: its callback is called, once. */
  event = new_event();
  watch(event);
  destroy_event(event);
  wait_for_calls(2);
  MUST(last_code == PJRT_Error_Code_CANCELLED);
}

/* Waits in native code that does not look at signals, as frameworks do; returns the code of the error that ended it. */
int wait_for_ever(void) {
  PJRT_Event *event = new_event();
  PJRT_Error *error = NULL;
  START(PJRT_Event_Await_Args, args);
  args.event = event;
  puts("waiting");
  fflush(stdout);
  error = api->PJRT_Event_Await(&args);
  const int code = error == NULL ? 0 : (int)code_of(error);
  free_error(error);
  destroy_event(event);
  return code;
}
