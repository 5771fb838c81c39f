/* Many threads make, use and end records at once; each use must see its own contents, and only the first one counts. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "callback_records.h"

enum { THREADS = 6, TURNS = 20000, HELD = 64 };

static void expect(bool condition, const char *what) {
  if (condition) return;
  printf("%s\n", what);
  exit(1);
}

static void *work(void *number) {
  pjrt_token held[HELD] = {0};
  for (int turn = 0; turn < TURNS; turn++) {
    pjrt_record record;
    const int place = turn % HELD;
    if (held[place] != 0) {
      expect(pjrt_record_use(held[place], &record), "a record ended before its use");
      expect(record.origin.handle == number, "a record has the contents of another thread");
      expect(!pjrt_record_use(held[place], &record), "a record was used twice");
      pjrt_record_end(held[place]); /* too late: it must not end another use */
    }
    const pjrt_record fresh = {.origin = {.handle = number}, .once = true};
    held[place] = pjrt_record_new(&fresh);
    expect(held[place] != 0, "there is no record left");
  }
  for (int place = 0; place < HELD; place++) pjrt_record_end(held[place]);
  return NULL;
}

int main(void) {
  pthread_t threads[THREADS];
  for (uintptr_t i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, work, (void *)(i + 1));
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  pjrt_record record;
  expect(!pjrt_record_use(0, &record) && !pjrt_record_use(~(pjrt_token)0, &record), "a number that names no record");
  expect(pjrt_num_records() == 0, "records are left");
  const pjrt_record lasting = {.origin = {.handle = work}};
  const pjrt_token token = pjrt_record_new(&lasting);
  pjrt_record_retire(token);
  expect(pjrt_record_use(token, &record), "a retired record ended at once");
  for (int i = 0; i < 5000; i++) pjrt_record_retire(pjrt_record_new(&lasting));
  expect(!pjrt_record_use(token, &record) && pjrt_num_records() == 0, "a retired record stays for ever");
  puts("ok");
  return 0;
}
