/* The file of a trace: a ring of chunks in memory that is shared with a file.
 *
 * A thread claims a chunk, writes its records into it one after the other, and then claims the next one: no two threads
 * write to the same place, and a record costs no atomic operation. The system writes the memory to the file, also when
 * the process is killed; what was recorded is never lost. Claiming overwrites the oldest chunk that no thread uses.
 *
 * The order in the file: the header, the schema as text (schema.c), the chunks. src/pjrt/layers/trace/trace_file.py
 * reads it, and knows these structs by their offsets: both change together, and with them TRACE_VERSION. */
#ifndef PJRT_LAYER_TRACE_FILE_H_
#define PJRT_LAYER_TRACE_FILE_H_

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "clock.h"

#define TRACE_MAGIC "PJRTRACE"
#define TRACE_VERSION 1
#define TRACE_PAGE 4096
#define TRACE_MAX_FILES 8
#define TRACE_PATH 6

enum { TRACE_CHUNK_FREE = 0, TRACE_CHUNK_OWNED = 1, TRACE_CHUNK_FULL = 2 };

/* A pair of both clocks at one moment. */
struct trace_anchor {
  uint64_t ticks;
  uint64_t nanoseconds;
};

struct trace_header {
  char magic[8];
  uint32_t version;
  uint32_t clock; /* 1: ticks of the counter; 0: nanoseconds */
  uint64_t schema_offset;
  uint64_t schema_size;
  uint64_t chunks_offset;
  uint32_t chunk_size;
  uint32_t num_chunks;
  int64_t start; /* nanoseconds since 1970, at the first anchor */
  struct trace_anchor first;
  struct trace_anchor last; /* of the opening, and then of each flush */
  uint64_t process;
  _Atomic uint32_t enabled;  /* also other processes may write it: "pjrt trace --on", "--off" */
  _Atomic uint32_t finished; /* the process ended, or closed the trace, in order */
  _Atomic uint64_t claims;   /* tries to claim a chunk until now: the next place in the ring */
  _Atomic uint64_t dropped;  /* records without a place: all chunks were in use */
  uint32_t sample;
  _Atomic uint32_t overwritten; /* chunks whose records newer ones replaced */
  char command[1024];
  char options[1024];
};

struct trace_chunk {
  _Atomic uint32_t state;
  _Atomic uint32_t used; /* bytes, with this header */
  uint64_t sequence;
  struct trace_anchor anchor;
  uint64_t thread; /* the number that the system gives it */
  uint32_t thread_index;
  uint32_t pins; /* open records of a chunk that its thread has left */
  char thread_name[16];
};

enum { TRACE_CALL = 1, TRACE_CALLBACK = 2, TRACE_DATA = 3, TRACE_READY = 4, TRACE_NOTE = 5 };
enum { TRACE_HIDDEN = 1, TRACE_FAILED = 2 };

/* A call or a callback. The struct of its arguments follows as it is in memory after the call, or, for a call that never
 * returned, before it. */
struct trace_record {
  uint32_t size; /* with this header; a multiple of 8 */
  uint8_t kind;
  uint8_t flags;
  uint16_t depth;
  uint32_t number; /* of the calls of its thread, from 1 */
  uint32_t parent; /* the call of the same thread inside which it happened, or 0 */
  uint16_t function;
  uint16_t code;
  uint32_t stack;
  uint64_t begin;
  uint64_t end; /* 0: it has not returned */
};

/* A text or an array behind a pointer of a call, cut to the limits of the options; also a note, with the time as path
 * and the stack as number. */
struct trace_data {
  uint32_t size;
  uint8_t kind;
  uint8_t flags;
  uint16_t element_size;
  uint32_t number; /* the call */
  uint32_t total;  /* elements */
  uint32_t kept;   /* elements that follow */
  uint16_t path[TRACE_PATH]; /* field, element, field of the inner struct, element, …; TRACE_NO_STEP ends it */
};
#define TRACE_NO_STEP 0xffff
#define TRACE_NOTES UINT32_MAX /* the index of the thread of chunks with notes */

/* An event became ready, as the layer itself heard of it. */
struct trace_ready {
  uint32_t size;
  uint8_t kind;
  uint8_t flags;
  uint16_t code;
  uint16_t function; /* that made the event */
  uint16_t reserved;
  uint32_t stack;
  uint64_t event;
  uint64_t buffer; /* whose ready event it is, or 0 */
  uint64_t begin;  /* when the layer began to listen */
  uint64_t end;
};

/* One thread's place in one file. */
struct trace_writer {
  struct trace_chunk *chunk;
  char *at;
  char *end;
  uint32_t generation;
  uint32_t number; /* of the last call */
  uint32_t parent; /* the call in which this thread is */
  uint32_t open;   /* open records in the chunk */
  uint32_t thread_index;
  uint16_t depth;
};

struct trace_file {
  struct trace_header *header;
  _Atomic uint32_t *enabled; /* the header's, or a constant of this process */
  _Atomic uint32_t generation; /* odd: open */
  bool ticks;
  bool keep_first; /* stop when the file is full */
  bool forked;
  int slot;
  int users;
  size_t size;
  size_t ring;
  char *schema;
  char options[1024];
  char pattern[1024]; /* of the path; %p stands for the process */
  char path[1024];
  _Atomic uint32_t threads;
  struct trace_writer notes; /* its chunks are never overwritten; under the lock of the files */
  uint32_t note_chunks;
};

/* Opens a file, or returns the one that is open under this pattern. Null with a message: the file cannot be made. The
 * schema is copied. */
struct trace_file *trace_file_open(
    const char *pattern, size_t ring, bool keep_first, bool enabled, uint32_t sample, const char *options,
    const char *schema, char *problem, size_t problem_size);
/* Records a line of text about a stack or one of its programs, which stays when the ring is full. */
void trace_file_note(struct trace_file *file, uint32_t stack, const char *text);
void trace_file_flush(struct trace_file *file);
void trace_file_close(struct trace_file *file);

/* The slow part of trace_writer_of: the first record of this thread, or of a forked process. Null: nothing is recorded. */
struct trace_writer *trace_attach(struct trace_file *file);
/* The slow part of trace_reserve: claims the next chunk. */
bool trace_next_chunk(struct trace_file *file, struct trace_writer *writer, size_t size);
/* Marks a chunk that its thread has left, and whose last open record ended, as one that may be overwritten. */
void trace_unpin(struct trace_chunk *chunk);

extern _Thread_local struct trace_writer trace_writers[TRACE_MAX_FILES];

static inline uint64_t trace_now(const struct trace_file *file) {
  return file->ticks ? trace_counter() : trace_nanoseconds();
}

static inline struct trace_writer *trace_writer_of(struct trace_file *file) {
  struct trace_writer *writer = &trace_writers[file->slot];
  if (writer->generation == atomic_load_explicit(&file->generation, memory_order_relaxed)) return writer;
  return trace_attach(file);
}

/* Room for a record of this size, which is a multiple of 8, or null. trace_commit makes it part of the file; until then
 * the layer calls nothing that may come back to it. */
static inline void *trace_reserve(struct trace_file *file, struct trace_writer *writer, size_t size) {
  if ((size_t)(writer->end - writer->at) < size && !trace_next_chunk(file, writer, size)) return NULL;
  return writer->at;
}

static inline void trace_commit(struct trace_writer *writer, size_t size) {
  writer->at += size;
  atomic_store_explicit(&writer->chunk->used, (uint32_t)(writer->at - (char *)writer->chunk), memory_order_release);
}

#endif /* PJRT_LAYER_TRACE_FILE_H_ */
