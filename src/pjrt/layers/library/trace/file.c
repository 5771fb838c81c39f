/* Files of traces, and the chunks of their rings. See trace/file.h. */
#include "file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mapping.h"

_Thread_local struct trace_writer trace_writers[TRACE_MAX_FILES];

static pjrt_mutex files_lock = PJRT_MUTEX_INITIALIZER;
static struct trace_file files[TRACE_MAX_FILES];
static _Atomic uint32_t never; /* stays 0 */

#define MIN_CHUNKS 16
#define LARGEST_CHUNK 65536
#define SMALLEST_CHUNK 8192

static struct trace_anchor anchor_now(const struct trace_file *file) {
  struct trace_anchor anchor;
  anchor.nanoseconds = trace_nanoseconds();
  anchor.ticks = file->ticks ? trace_counter() : anchor.nanoseconds;
  return anchor;
}

static void release(struct trace_chunk *chunk) {
  atomic_store_explicit(&chunk->state, TRACE_CHUNK_FULL, memory_order_release);
}

/* ---- threads that end -------------------------------------------------------------------------------------------- */

static void leave_chunk(struct trace_writer *writer) {
  struct trace_chunk *chunk = writer->chunk;
  if (chunk == NULL) return;
  if (writer->open > 0) {
    chunk->pins = writer->open;
    writer->open = 0;
  } else {
    release(chunk);
  }
  writer->chunk = NULL;
  writer->at = writer->end = NULL;
}

static void leave_files(void *unused) {
  (void)unused;
  for (int i = 0; i < TRACE_MAX_FILES; i++) {
    struct trace_writer *writer = &trace_writers[i];
    /* The memory of a file that was closed, or that belongs to the parent of a forked process, is left alone. */
    if (writer->generation == atomic_load(&files[i].generation)) leave_chunk(writer);
    memset(writer, 0, sizeof *writer);
  }
}

static pthread_key_t thread_end;

/* In the child of fork: the parent goes on writing to the shared memory. */
static void after_fork(void) {
  for (int i = 0; i < TRACE_MAX_FILES; i++) {
    struct trace_file *file = &files[i];
    if (!(file->generation & 1)) continue;
    atomic_fetch_add(&file->generation, 2); /* every writer attaches anew */
    file->forked = true;
  }
  pjrt_mutex_init(&files_lock);
}

static void watch_threads(void) {
  pthread_key_create(&thread_end, leave_files);
  pthread_atfork(NULL, NULL, after_fork);
}

static void watch_this_thread(void) { pthread_setspecific(thread_end, files); }

/* ---- files ------------------------------------------------------------------------------------------------------- */

static void expand(const char *pattern, char *path, size_t size) {
  size_t at = 0;
  for (const char *p = pattern; *p && at + 1 < size; p++) {
    if (p[0] == '%' && p[1] == 'p') {
      at += (size_t)snprintf(path + at, size - at, "%llu", (unsigned long long)trace_process());
      if (at >= size) at = size - 1;
      p++;
    } else {
      path[at++] = *p;
    }
  }
  path[at] = 0;
}

static void read_command(char *command, size_t size) {
#ifdef __linux__
  FILE *file = fopen("/proc/self/cmdline", "rb");
  if (file == NULL) return;
  const size_t length = fread(command, 1, size - 1, file);
  fclose(file);
  for (size_t i = 0; i + 1 < length; i++)
    if (command[i] == 0) command[i] = ' ';
  command[length] = 0;
#else
  (void)command;
  (void)size;
#endif
}

static size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

static bool map_file(struct trace_file *file, bool enabled, uint32_t sample, char *problem, size_t problem_size) {
  const size_t schema_size = strlen(file->schema);
  const size_t chunks_offset = round_up(TRACE_PAGE + schema_size, TRACE_PAGE);
  size_t chunk_size = LARGEST_CHUNK;
  while (chunk_size > SMALLEST_CHUNK && file->ring / chunk_size < 4 * MIN_CHUNKS) chunk_size /= 2;
  size_t num_chunks = file->ring / chunk_size;
  if (num_chunks < MIN_CHUNKS) num_chunks = MIN_CHUNKS;
  file->size = chunks_offset + num_chunks * chunk_size;
  expand(file->pattern, file->path, sizeof file->path);
  struct trace_header *header = trace_map(file->path, file->size, problem, problem_size);
  if (header == NULL) return false;
  header->version = TRACE_VERSION;
  header->clock = file->ticks;
  header->schema_offset = TRACE_PAGE;
  header->schema_size = schema_size;
  header->chunks_offset = chunks_offset;
  header->chunk_size = (uint32_t)chunk_size;
  header->num_chunks = (uint32_t)num_chunks;
  header->process = trace_process();
  header->sample = sample;
  atomic_store(&header->enabled, enabled);
  read_command(header->command, sizeof header->command);
  snprintf(header->options, sizeof header->options, "%s", file->options);
  memcpy((char *)header + TRACE_PAGE, file->schema, schema_size);
  header->start = trace_wall_clock();
  header->first = anchor_now(file);
  /* A process may die at once: half a millisecond gives the speed of the counter within one part in a thousand. Later
   * anchors, one for each chunk, make it better. */
  while (file->ticks && trace_nanoseconds() - header->first.nanoseconds < 500000) continue;
  header->last = anchor_now(file);
  memcpy(header->magic, TRACE_MAGIC, sizeof header->magic);
  file->header = header;
  file->enabled = &header->enabled;
  atomic_store(&file->threads, 0);
  memset(&file->notes, 0, sizeof file->notes);
  file->note_chunks = 0;
  return true;
}

struct trace_file *trace_file_open(
    const char *pattern, size_t ring, bool keep_first, bool enabled, uint32_t sample, const char *options,
    const char *schema, char *problem, size_t problem_size) {
  static bool watching;
  struct trace_file *file = NULL;
  if (strlen(pattern) >= sizeof file->pattern) {
    snprintf(problem, problem_size, "expected a path of less than %zu bytes", sizeof file->pattern);
    return NULL;
  }
  pjrt_mutex_lock(&files_lock);
  if (!watching) {
    watching = true;
    watch_threads();
  }
  int vacant = -1;
  for (int i = 0; i < TRACE_MAX_FILES && file == NULL; i++) {
    if (!(files[i].generation & 1)) {
      if (vacant < 0) vacant = i;
    } else if (strcmp(files[i].pattern, pattern) == 0) {
      file = &files[i];
      file->users++;
    }
  }
  if (file == NULL && vacant < 0) {
    snprintf(problem, problem_size, "expected at most %d trace files in one process", TRACE_MAX_FILES);
  } else if (file == NULL) {
    struct trace_file *place = &files[vacant];
    place->slot = vacant;
    place->ring = ring;
    place->keep_first = keep_first;
    place->forked = false;
    place->ticks = trace_counter_is_steady();
    snprintf(place->pattern, sizeof place->pattern, "%s", pattern);
    snprintf(place->options, sizeof place->options, "%s", options);
    free(place->schema);
    place->schema = malloc(strlen(schema) + 1);
    if (place->schema != NULL) strcpy(place->schema, schema);
    if (place->schema == NULL) {
      snprintf(problem, problem_size, "no memory");
    } else if (map_file(place, enabled, sample, problem, problem_size)) {
      atomic_fetch_add(&place->generation, 1);
      place->users = 1;
      file = place;
    }
  }
  pjrt_mutex_unlock(&files_lock);
  return file;
}

void trace_file_flush(struct trace_file *file) {
  if (file->forked || !(file->generation & 1)) return;
  file->header->last = anchor_now(file);
  trace_sync(file->header, file->size);
}

/* The memory stays: threads may be inside of calls whose records are open. */
void trace_file_close(struct trace_file *file) {
  pjrt_mutex_lock(&files_lock);
  if ((file->generation & 1) && --file->users == 0 && !file->forked) {
    trace_file_flush(file);
    atomic_store(&file->header->finished, 1);
    file->enabled = &never;
    atomic_fetch_add(&file->generation, 1);
  }
  pjrt_mutex_unlock(&files_lock);
}

/* ---- writers ----------------------------------------------------------------------------------------------------- */

/* A forked process gets a file of its own if the path names the process; else only its parent goes on recording. */
static void reopen_after_fork(struct trace_file *file) {
  pjrt_mutex_lock(&files_lock);
  if (file->forked) {
    char problem[1200];
    const struct trace_header *parents = file->header;
    const bool enabled = atomic_load(&parents->enabled);
    file->enabled = &never;
    if (strstr(file->pattern, "%p") != NULL) {
      if (!map_file(file, enabled, parents->sample, problem, sizeof problem))
        fprintf(stderr, "pjrt: trace: this forked process is not traced: %s\n", problem);
    }
    file->forked = false;
  }
  pjrt_mutex_unlock(&files_lock);
}

struct trace_writer *trace_attach(struct trace_file *file) {
  if (file->forked) reopen_after_fork(file);
  const uint32_t generation = atomic_load(&file->generation);
  if (!(generation & 1) || file->enabled == &never) return NULL;
  struct trace_writer *writer = &trace_writers[file->slot];
  memset(writer, 0, sizeof *writer);
  writer->generation = generation;
  writer->thread_index = atomic_fetch_add(&file->threads, 1);
  watch_this_thread();
  return writer;
}

static struct trace_chunk *claim(struct trace_file *file, uint64_t *sequence) {
  struct trace_header *header = file->header;
  /* Twice around: a chunk of another thread may become free meanwhile. */
  for (uint64_t tries = 2 * (uint64_t)header->num_chunks; tries > 0; tries--) {
    const uint64_t number = atomic_fetch_add(&header->claims, 1);
    struct trace_chunk *chunk =
        (struct trace_chunk *)((char *)header + header->chunks_offset + number % header->num_chunks * header->chunk_size);
    uint32_t state = atomic_load_explicit(&chunk->state, memory_order_acquire);
    if (state == TRACE_CHUNK_OWNED || (state == TRACE_CHUNK_FULL && file->keep_first)) continue;
    if (!atomic_compare_exchange_strong(&chunk->state, &state, TRACE_CHUNK_OWNED)) continue;
    if (state == TRACE_CHUNK_FULL) atomic_fetch_add(&header->overwritten, 1);
    *sequence = number;
    return chunk;
  }
  return NULL;
}

static void begin_chunk(struct trace_file *file, struct trace_writer *writer, struct trace_chunk *chunk,
                        uint64_t sequence) {
  atomic_store_explicit(&chunk->used, 0, memory_order_release);
  chunk->sequence = sequence;
  chunk->anchor = anchor_now(file);
  chunk->thread = trace_thread(chunk->thread_name);
  chunk->thread_index = writer->thread_index;
  chunk->pins = 0;
  atomic_store_explicit(&chunk->used, sizeof *chunk, memory_order_release);
  writer->chunk = chunk;
  writer->at = (char *)(chunk + 1);
  writer->end = (char *)chunk + file->header->chunk_size;
}

bool trace_next_chunk(struct trace_file *file, struct trace_writer *writer, size_t size) {
  struct trace_header *header = file->header;
  uint64_t sequence;
  struct trace_chunk *chunk = NULL;
  if (size <= header->chunk_size - sizeof *chunk) {
    leave_chunk(writer);
    chunk = claim(file, &sequence);
  }
  if (chunk == NULL) {
    atomic_fetch_add(&header->dropped, 1);
    /* A file that keeps the first records is full: nothing is recorded from here, and calls cost nothing. */
    if (file->keep_first) atomic_store(&header->enabled, 0);
    return false;
  }
  begin_chunk(file, writer, chunk, sequence);
  return true;
}

void trace_unpin(struct trace_chunk *chunk) {
  if (--chunk->pins == 0) release(chunk);
}

void trace_file_note(struct trace_file *file, uint32_t stack, const char *text) {
  const size_t length = strlen(text);
  const size_t size = sizeof(struct trace_data) + ((length + 7) & ~(size_t)7);
  pjrt_mutex_lock(&files_lock);
  struct trace_writer *notes = &file->notes;
  if ((file->generation & 1) && !file->forked && (size_t)(notes->end - notes->at) < size &&
      file->note_chunks < file->header->num_chunks / 8 && size < file->header->chunk_size / 2) {
    uint64_t sequence;
    struct trace_chunk *chunk = claim(file, &sequence);
    notes->thread_index = TRACE_NOTES;
    file->note_chunks++;
    if (chunk != NULL) begin_chunk(file, notes, chunk, sequence);
  }
  if ((size_t)(notes->end - notes->at) >= size) {
    struct trace_data *record = (struct trace_data *)notes->at;
    const uint64_t now = trace_now(file);
    *record = (struct trace_data){
        .size = (uint32_t)size, .kind = TRACE_NOTE, .element_size = 1, .number = stack, .total = (uint32_t)length,
        .kept = (uint32_t)length};
    memcpy(record->path, &now, sizeof now);
    memcpy(record + 1, text, length);
    trace_commit(notes, size);
  }
  pjrt_mutex_unlock(&files_lock);
}
