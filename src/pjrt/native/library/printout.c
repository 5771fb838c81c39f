/* What a process of ours prints: each line goes to the standard error of this one, behind the name of the device; nothing
 * goes there where that is empty. The last lines are kept for the error that says how the process ended, but for the frames
 * of a stack, which would leave no room for what is said before them. */
#include <errno.h>
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include "runtime.h"

enum { LONGEST_LINE = 2000, KEPT = 700, PATIENCE_MS = 500 };

struct printout {
  atomic_int refs; /* the process, and the thread that reads */
  int file;
  char *name;
  pthread_mutex_t mutex; /* guards what follows */
  pthread_cond_t ended;
  bool is_over;
  char kept[KEPT];
  size_t size;
};

void printout_unref(printout *each) {
  if (each == NULL || atomic_fetch_sub(&each->refs, 1) != 1) return;
  close(each->file);
  pthread_mutex_destroy(&each->mutex);
  pthread_cond_destroy(&each->ended);
  free(each->name);
  free(each);
}

/* Whether a line is a frame of a stack as native code prints it, such as "    @     0x7f5c  run()". */
static bool is_frame(const char *line) {
  line += strspn(line, " ");
  return *line == '@' && strncmp(line + 1 + strspn(line + 1, " "), "0x", 2) == 0;
}

/* Whole lines, as many as fit, but for the last one, of which the end is kept. */
static void keep(printout *each, const char *line, size_t size) {
  if (is_frame(line)) return;
  if (size > KEPT) line += size - KEPT, size = KEPT;
  pthread_mutex_lock(&each->mutex);
  size_t drop = 0;
  while (each->size - drop + size > KEPT) {
    const char *next = memchr(each->kept + drop, '\n', each->size - drop);
    drop = next ? (size_t)(next - each->kept) + 1 : each->size;
  }
  memmove(each->kept, each->kept + drop, each->size -= drop);
  memcpy(each->kept + each->size, line, size);
  each->size += size;
  pthread_mutex_unlock(&each->mutex);
}

/* A line with its end, by one call: lines of several processes do not mix. */
static void show(printout *each, const char *line, size_t size) {
  keep(each, line, size);
  if (*each->name == 0) return;
  char *text = printed("[%s] %.*s", each->name, (int)size, line);
  for (size_t left = strlen(text), at = 0; left;) {
    ssize_t written = write(STDERR_FILENO, text + at, left);
    if (written < 0 && errno != EINTR) break;
    if (written > 0) at += (size_t)written, left -= (size_t)written;
  }
  free(text);
}

static void *read_printout(void *arg) {
  printout *each = arg;
  char line[LONGEST_LINE + 1];
  size_t size = 0;
  for (;;) {
    ssize_t got = read(each->file, line + size, LONGEST_LINE - size);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    size += (size_t)got;
    char *begin = line, *end;
    while ((end = memchr(begin, '\n', size))) {
      show(each, begin, (size_t)(end - begin) + 1);
      size -= (size_t)(end - begin) + 1;
      begin = end + 1;
    }
    memmove(line, begin, size);
    if (size < LONGEST_LINE) continue;
    line[size] = '\n';
    show(each, line, size + 1);
    size = 0;
  }
  line[size] = '\n';
  if (size) show(each, line, size + 1);
  pthread_mutex_lock(&each->mutex);
  each->is_over = true;
  pthread_cond_broadcast(&each->ended);
  pthread_mutex_unlock(&each->mutex);
  printout_unref(each);
  return NULL;
}

printout *printout_make(const char *name, int *theirs) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return NULL;
  printout *each = new_zeroed(1, sizeof *each);
  atomic_init(&each->refs, 2);
  each->file = ends[0];
  each->name = copy_of(name, strlen(name));
  pthread_mutex_init(&each->mutex, NULL);
  pthread_cond_init(&each->ended, NULL);
  *theirs = fcntl(ends[1], F_DUPFD_CLOEXEC, 5); /* the process gets other files under the lower numbers */
  close(ends[1]);
  pthread_t thread;
  if (*theirs >= 0 && pthread_create(&thread, NULL, read_printout, each) == 0) {
    pthread_detach(thread);
    return each;
  }
  if (*theirs >= 0) close(*theirs);
  atomic_store(&each->refs, 1);
  printout_unref(each);
  return NULL;
}

char *printout_last(printout *each) {
  if (each == NULL) return NULL;
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_nsec += PATIENCE_MS * 1000000L;
  until.tv_sec += until.tv_nsec / 1000000000;
  until.tv_nsec %= 1000000000;
  pthread_mutex_lock(&each->mutex);
  /* A process that it started may still have the file. */
  while (!each->is_over && pthread_cond_timedwait(&each->ended, &each->mutex, &until) != ETIMEDOUT) {
  }
  size_t size = each->size;
  while (size && each->kept[size - 1] == '\n') --size;
  char *last = size ? copy_of(each->kept, size) : NULL;
  pthread_mutex_unlock(&each->mutex);
  return last;
}
