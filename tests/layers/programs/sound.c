/* What a layer must survive: arguments and results without sense, and many threads. "threads" breaks no rule. */
#include <pthread.h>
#include <sys/mman.h>

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

const rule_case sound_cases[] = {
    {"fuzz", fuzz, true},
    {"threads", threads, false},
    {NULL, NULL, false},
};
