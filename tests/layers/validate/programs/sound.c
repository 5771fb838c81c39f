/* What a layer must survive: arguments and results without sense, and many threads. All but "fuzz" break no rule. */
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include "program.h"

/* ---- words without sense ------------------------------------------------------------------------------------------*/
enum { WORDS = 64, OBJECTS = 16, CALLS = 40000, FIRST_SLOT = offsetof(PJRT_Api, PJRT_Error_Destroy) };

static uint64_t state = 88172645463325252u;
static uint64_t objects[OBJECTS][8];
static void *unmapped;
static int own_error;

static uint64_t next_number(void) {
  state ^= state << 13;
  state ^= state >> 7;
  return state ^= state << 17;
}

/* A word that may be anything: a handle, a pointer, a count, garbage. */
static uint64_t any_word(void) {
  const uint64_t number = next_number();
  switch (number % 12) {
    case 0:
    case 1: return 0;
    case 2:
    case 3:
    case 4:
    case 5: return (uint64_t)(uintptr_t)objects[number / 16 % OBJECTS];
    case 6: return (uint64_t)(uintptr_t)unmapped + number / 16 % 64;
    case 7: return number / 16 % 5;
    case 8: return UINT64_MAX - number / 16 % 9;
    case 9: return number;
    case 10: return (uint64_t)1 << (number / 16 % 64);
    default: return (uint64_t)(uintptr_t)&objects[number / 16 % OBJECTS][number / 256 % 8];
  }
}

static void fill(uint64_t *words, size_t count) {
  for (size_t i = 0; i < count; i++) words[i] = any_word();
}

/* A plugin whose results have no sense either; the size of the struct is one that the layer took for right. */
static PJRT_Error *any_result(void *args) {
  uint64_t *words = args;
  if (next_number() % 4 == 0) fill(words + 3, words[0] > 8 * WORDS ? WORDS - 3 : words[0] / 8 > 3 ? words[0] / 8 - 3 : 0);
  return next_number() % 16 == 0 ? (PJRT_Error *)&own_error : NULL;
}

static void no_message(PJRT_Error_Message_Args *args) {
  args->message = "";
  args->message_size = 0;
}

static void fuzz(void) {
  PJRT_Error *(**slots)(void *) = (PJRT_Error * (**)(void *))((char *)&changed + FIRST_SLOT);
  const size_t number = (sizeof changed - FIRST_SLOT) / sizeof *slots;
  for (size_t i = 0; i < number; i++) slots[i] = any_result;
  changed.PJRT_Error_Message = no_message;
  changed.extension_start = NULL;
  wrap();
  unmapped = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  void *(**calls)(void *) = (void *(**)(void *))((char *)api + FIRST_SLOT);
  for (int i = 0; i < CALLS; i++) {
    uint64_t words[WORDS + 16];
    fill(&objects[0][0], i % 64 == 0 ? OBJECTS * 8 : 0);
    fill(words, WORDS);
    if (next_number() % 16 != 0) words[0] = 16 + 8 * (next_number() % 20);
    if (next_number() % 16 != 0) words[1] = 0;
    calls[next_number() % number](next_number() % 64 == 0 ? (void *)(uintptr_t)any_word() : words);
  }
  puts("survived");
}

/* ---- threads ------------------------------------------------------------------------------------------------------*/
enum { THREADS = 8, ROUNDS = 2000 };

static void ignore(PJRT_Error *error, void *calls) {
  EXPECT(error == NULL);
  atomic_fetch_add((atomic_int *)calls, 1);
}

/* Addresses are used again and again by all threads. */
static void *make_and_destroy(void *shared) {
  PJRT_Client *client = shared;
  atomic_int calls = 0;
  for (int i = 0; i < ROUNDS; i++) {
    CALL(Event_Create, create);
    CALL(Event_OnReady, on_ready, .event = create.event, .callback = ignore, .user_arg = &calls);
    CALL(Event_Set, set, .event = create.event);
    destroy_event(create.event);
    if (i % 8 != 0) continue;
    PJRT_Buffer *buffer = make_buffer(client);
    await_buffer(buffer);
    destroy_buffer(buffer);
  }
  EXPECT(atomic_load(&calls) == ROUNDS);
  return NULL;
}

static void threads(void) {
  pthread_t all[THREADS];
  PJRT_Client *client = make_client();
  for (int i = 0; i < THREADS; i++) pthread_create(&all[i], NULL, make_and_destroy, client);
  for (int i = 0; i < THREADS; i++) pthread_join(all[i], NULL);
  destroy_client(client);
  puts("survived");
}

/* A plugin that copies also where it might use the memory in place. */
static PJRT_Error *copy_from_host(PJRT_Client_BufferFromHostBuffer_Args *args) {
  PJRT_Client_BufferFromHostBuffer_Args own = *args;
  own.host_buffer_semantics = PJRT_HostBufferSemantics_kImmutableUntilTransferCompletes;
  PJRT_Error *error = plugin->PJRT_Client_BufferFromHostBuffer(&own);
  args->buffer = own.buffer;
  args->done_with_host_buffer = own.done_with_host_buffer;
  return error;
}

/* The event may go before the memory is free, if a callback tells when that is; then the memory may change. */
static void memory_after_callback(void) {
  static float data[1024];
  const int64_t dims[] = {1024};
  atomic_int calls = 0;
  changed.PJRT_Client_BufferFromHostBuffer = copy_from_host;
  wrap();
  PJRT_Client *client = make_client();
  hold(true);
  CALL(Client_BufferFromHostBuffer, put, .client = client, .data = data, .type = PJRT_Buffer_Type_F32, .dims = dims,
       .num_dims = 1, .host_buffer_semantics = PJRT_HostBufferSemantics_kImmutableZeroCopy,
       .device = device_of(client, 0));
  CALL(Event_OnReady, on_ready, .event = put.done_with_host_buffer, .callback = ignore, .user_arg = &calls);
  destroy_event(put.done_with_host_buffer);
  hold(false);
  await_buffer(put.buffer);
  while (atomic_load(&calls) == 0) usleep(1000);
  data[7] = 1;
  destroy_buffer(put.buffer);
  destroy_client(client);
  puts("survived");
}

const rule_case sound_cases[] = {
    {"fuzz", fuzz, true},
    {"threads", threads, false},
    {"memory-after-callback", memory_after_callback, true},
    {NULL, NULL, false},
};
