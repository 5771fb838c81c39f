#include "mapping.h" /* first: it asks for the functions of the system */

#include "file.h"

#include <stdatomic.h>
#include <stdlib.h>

/* ---- bytes --------------------------------------------------------------------------------------------------------*/
static bool reserve(record_bytes *bytes, size_t size) {
  if (bytes->failed) return false;
  if (bytes->capacity - bytes->size >= size) return true;
  size_t capacity = bytes->capacity ? bytes->capacity : 1024;
  while (capacity - bytes->size < size && capacity <= SIZE_MAX / 2) capacity *= 2;
  unsigned char *data = capacity - bytes->size < size ? NULL : realloc(bytes->data, capacity);
  if (data == NULL) {
    bytes->failed = true;
    return false;
  }
  bytes->data = data;
  bytes->capacity = capacity;
  return true;
}

void bytes_append(record_bytes *bytes, const void *data, size_t size) {
  if (size == 0 || !reserve(bytes, size)) return;
  memcpy(bytes->data + bytes->size, data, size);
  bytes->size += size;
}

void bytes_varint(record_bytes *bytes, uint64_t number) {
  if (!reserve(bytes, 10)) return;
  while (number >= 0x80) {
    bytes->data[bytes->size++] = (unsigned char)(number | 0x80);
    number >>= 7;
  }
  bytes->data[bytes->size++] = (unsigned char)number;
}

/* ---- CRC-32 (that of zlib), eight bytes at a time -----------------------------------------------------------------*/
static uint32_t crc_table[8][256];

static void make_crc_table(void) {
  for (uint32_t i = 0; i < 256; i++) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
    crc_table[0][i] = crc;
  }
  for (int lane = 1; lane < 8; lane++) {
    for (int i = 0; i < 256; i++)
      crc_table[lane][i] = crc_table[lane - 1][i] >> 8 ^ crc_table[0][crc_table[lane - 1][i] & 0xFF];
  }
}

static uint32_t crc_add(uint32_t crc, const unsigned char *data, size_t size) {
  for (; size >= 8; size -= 8, data += 8) {
    const uint32_t low = crc ^ ((uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 |
                                (uint32_t)data[3] << 24);
    crc = crc_table[7][low & 0xFF] ^ crc_table[6][low >> 8 & 0xFF] ^ crc_table[5][low >> 16 & 0xFF] ^
          crc_table[4][low >> 24] ^ crc_table[3][data[4]] ^ crc_table[2][data[5]] ^ crc_table[1][data[6]] ^
          crc_table[0][data[7]];
  }
  while (size--) crc = crc >> 8 ^ crc_table[0][(crc ^ *data++) & 0xFF];
  return crc;
}

/* ---- the file -----------------------------------------------------------------------------------------------------*/
typedef struct digest {
  uint64_t low, high;
} digest;

typedef struct blob_entry {
  digest digest;
  uint64_t size, number; /* a number of 0 marks a free place */
} blob_entry;

typedef struct name_entry {
  const char *name;
  uint64_t number;
} name_entry;

enum { WINDOW = 1 << 20, LARGE = 1 << 16 /* bytes: larger records are written, not copied into the window */ };

/* Small records go into memory that is shared with the file: they are in the file when the process dies, and cost no call
 * of the system. */
struct record_file {
  int descriptor; /* -1: closed */
  bool is_mapped; /* false for what is no regular file, such as a pipe */
  char *path;
  unsigned char *window; /* the file from window_begin on; null at first */
  uint64_t window_begin, allocated, size;
  record_bytes head; /* the record being put together, but for large data */
  blob_entry *blobs; /* hash table; the number of places is a power of 2 */
  size_t num_places, num_blobs;
  name_entry *names; /* hash table by the address of the text: names are constants of the schema */
  size_t num_name_places, num_names;
};

/* The files of this process: two plugins that are given the same path have files of their own. */
enum { MAX_FILES = 64 };
static pjrt_mutex paths_mutex = PJRT_MUTEX_INITIALIZER;
static char *paths[MAX_FILES];

/* The path; for the second plugin of a process with the same path, and later ones, with a number before its ending. */
bool record_file_path(const char *path, char *out, size_t size) {
  const char *dot = strrchr(path, '.'), *slash = strrchr(path, '/');
  if (dot == NULL || (slash != NULL && dot < slash)) dot = path + strlen(path);
  bool done = false;
  pjrt_mutex_lock(&paths_mutex);
  for (int number = 0; number < MAX_FILES && !done; number++) {
    if (number == 0) snprintf(out, size, "%s", path);
    else snprintf(out, size, "%.*s.%d%s", (int)(dot - path), path, number, dot);
    int at = 0;
    while (at < MAX_FILES && paths[at] != NULL && strcmp(paths[at], out) != 0) at++;
    if (at < MAX_FILES && paths[at] != NULL) continue; /* another plugin's */
    done = true;
    if (at < MAX_FILES && (paths[at] = malloc(strlen(out) + 1)) != NULL) strcpy(paths[at], out);
  }
  pjrt_mutex_unlock(&paths_mutex);
  return done;
}

static atomic_bool is_forked_child; /* which shares the files with its parent, and leaves them alone */
static void note_fork(void) { atomic_store(&is_forked_child, true); }

record_file *record_file_open(const char *path, char *problem, size_t problem_size) {
  static atomic_bool watches_forks;
  record_file *file = calloc(1, sizeof *file);
  const int descriptor = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (file != NULL) file->path = malloc(strlen(path) + 1);
  if (descriptor < 0 || file == NULL || file->path == NULL) {
    snprintf(problem, problem_size, "cannot write the recording %s: %s", path, strerror(errno));
    if (descriptor >= 0) close(descriptor);
    if (file != NULL) free(file->path);
    free(file);
    return NULL;
  }
  struct stat status;
  strcpy(file->path, path);
  file->descriptor = descriptor;
  file->is_mapped = fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
  if (!atomic_exchange(&watches_forks, true)) pthread_atfork(NULL, NULL, note_fork);
  make_crc_table();
  return file;
}

bool record_file_is_open(const record_file *file) {
  return file->descriptor >= 0 && !atomic_load_explicit(&is_forked_child, memory_order_relaxed);
}

static void stop(record_file *file, const char *reason) {
  fprintf(stderr, "pjrt: the recording %s ends here, and the program goes on without it: %s\n", file->path, reason);
  record_file_close(file);
}

static bool write_all(record_file *file, const void *data, size_t size, uint64_t at) {
  const char *rest = data;
  while (size > 0) {
    errno = ENOSPC;
    const ssize_t count = file->is_mapped ? pwrite(file->descriptor, rest, size, (off_t)at)
                                          : write(file->descriptor, rest, size);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      stop(file, strerror(errno));
      return false;
    }
    rest += count;
    at += (uint64_t)count;
    size -= (size_t)count;
  }
  return true;
}

/* Takes place on the disk up to here. Without it, a full disk would end the process at a write to the window. */
static bool allocate(record_file *file, uint64_t end) {
  if (end <= file->allocated) return true;
#ifdef __APPLE__
  const int failure = trace_allocate(file->descriptor, (size_t)end);
#else
  const int failure = posix_fallocate(file->descriptor, (off_t)file->allocated, (off_t)(end - file->allocated));
#endif
  if (failure != 0) {
    stop(file, strerror(failure));
    return false;
  }
  file->allocated = end;
  return true;
}

/* The place for so many bytes at the end of the file; null after an error. */
static unsigned char *place_for(record_file *file, size_t size) {
  if (file->window == NULL || file->size + size > file->window_begin + WINDOW) {
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    if (file->window != NULL) munmap(file->window, WINDOW);
    file->window = NULL;
    file->window_begin = file->size / page * page;
    if (!allocate(file, file->window_begin + WINDOW)) return NULL;
    void *window = mmap(NULL, WINDOW, PROT_READ | PROT_WRITE, MAP_SHARED, file->descriptor, (off_t)file->window_begin);
    if (window == MAP_FAILED) {
      stop(file, strerror(errno));
      return NULL;
    }
    file->window = window;
  }
  return file->window + (file->size - file->window_begin);
}

static void put32(unsigned char *out, uint32_t value) {
  for (int i = 0; i < 4; i++) out[i] = (unsigned char)(value >> 8 * i);
}

/* Writes a record of two parts; the second may be large, and is not copied. Its size is written last: without it a reader
 * takes the file to end before the record. */
static void write_parts(record_file *file, record_kind kind, const void *first, size_t first_size, const void *second,
                        size_t second_size) {
  static const char magic[] = "PJRTREC\n";
  if (file->descriptor < 0) return;
  if (second_size > UINT32_MAX - 64 - first_size) {
    stop(file, "a record must be smaller than 4 GB");
    return;
  }
  if (file->size == 0) {
    if (!write_all(file, magic, sizeof magic - 1, 0)) return;
    file->size = sizeof magic - 1;
  }
  unsigned char frame[9];
  frame[8] = (unsigned char)kind;
  uint32_t crc = crc_add(0xFFFFFFFFu, frame + 8, 1);
  crc = crc_add(crc, first, first_size);
  crc = crc_add(crc, second, second_size);
  put32(frame, (uint32_t)(1 + first_size + second_size));
  put32(frame + 4, ~crc);
  const size_t total = sizeof frame + first_size + second_size;
  if (file->is_mapped && total <= LARGE) {
    unsigned char *place = place_for(file, total);
    if (place == NULL) return;
    memcpy(place + 4, frame + 4, sizeof frame - 4);
    memcpy(place + sizeof frame, first, first_size);
    if (second_size > 0) memcpy(place + sizeof frame + first_size, second, second_size);
    atomic_thread_fence(memory_order_release);
    memcpy(place, frame, 4);
    file->size += total;
    return;
  }
  record_bytes *head = &file->head;
  head->size = 0;
  bytes_append(head, frame, sizeof frame);
  bytes_append(head, first, first_size);
  if (!file->is_mapped) bytes_append(head, second, second_size);
  if (head->failed) {
    stop(file, "out of memory");
    return;
  }
  if (!file->is_mapped) {
    if (write_all(file, head->data, head->size, 0)) file->size += total;
    return;
  }
  if (!write_all(file, second, second_size, file->size + head->size) ||
      !write_all(file, head->data + 4, head->size - 4, file->size + 4) || !write_all(file, head->data, 4, file->size))
    return;
  file->size += total;
  if (file->allocated < file->size) file->allocated = file->size;
}

void record_file_write(record_file *file, record_kind kind, const void *data, size_t size) {
  write_parts(file, kind, data, size, NULL, 0);
}

uint64_t record_file_name(record_file *file, const char *name) {
  if (file->num_names * 2 >= file->num_name_places) {
    const size_t places = file->num_name_places ? file->num_name_places * 2 : 512;
    name_entry *larger = calloc(places, sizeof *larger);
    if (larger == NULL) {
      if (file->descriptor >= 0) stop(file, "out of memory");
      return 0;
    }
    for (size_t i = 0; i < file->num_name_places; i++) {
      if (file->names[i].name == NULL) continue;
      size_t at = (uintptr_t)file->names[i].name * 0x9E3779B97F4A7C15u >> 20 & (places - 1);
      while (larger[at].name != NULL) at = (at + 1) & (places - 1);
      larger[at] = file->names[i];
    }
    free(file->names);
    file->names = larger;
    file->num_name_places = places;
  }
  size_t at = (uintptr_t)name * 0x9E3779B97F4A7C15u >> 20 & (file->num_name_places - 1);
  while (file->names[at].name != NULL) {
    if (file->names[at].name == name) return file->names[at].number;
    at = (at + 1) & (file->num_name_places - 1);
  }
  file->names[at] = (name_entry){name, ++file->num_names};
  unsigned char number[10];
  record_bytes bytes = {number, 0, sizeof number, false};
  bytes_varint(&bytes, file->num_names);
  write_parts(file, RECORD_NAME, number, bytes.size, name, strlen(name));
  return file->num_names;
}

/* ---- data, once ---------------------------------------------------------------------------------------------------*/
static uint64_t mix(uint64_t value) {
  value ^= value >> 32;
  value *= 0xD6E8FEB86659FD93u;
  value ^= value >> 32;
  value *= 0xD6E8FEB86659FD93u;
  return value ^ value >> 32;
}

/* 128 bits, so that two different arrays are never taken for one; it resists chance, not an attacker. */
static digest digest_of(const unsigned char *data, size_t size) {
  uint64_t lanes[4] = {size, 0x243F6A8885A308D3u, 0x13198A2E03707344u, 0xA4093822299F31D0u};
  size_t at = 0;
  for (; size - at >= 32; at += 32) {
    uint64_t words[4];
    memcpy(words, data + at, 32);
    for (int i = 0; i < 4; i++) {
      lanes[i] = (lanes[i] ^ words[i]) * 0x9E3779B97F4A7C15u;
      lanes[i] ^= lanes[i] >> 29;
    }
  }
  uint64_t words[4] = {0};
  memcpy(words, data + at, size - at);
  for (int i = 0; i < 4; i++) lanes[i] = mix(lanes[i] ^ words[i]);
  digest result = {mix(lanes[0] + 3 * lanes[1] + 5 * lanes[2] + 7 * lanes[3]),
                   mix(lanes[0] ^ mix(lanes[1] + mix(lanes[2] ^ mix(lanes[3]))))};
  return result;
}

static bool grow_blobs(record_file *file) {
  const size_t places = file->num_places ? file->num_places * 2 : 256;
  blob_entry *larger = calloc(places, sizeof *larger);
  if (larger == NULL) return false;
  for (size_t i = 0; i < file->num_places; i++) {
    if (file->blobs[i].number == 0) continue;
    size_t at = file->blobs[i].digest.low & (places - 1);
    while (larger[at].number != 0) at = (at + 1) & (places - 1);
    larger[at] = file->blobs[i];
  }
  free(file->blobs);
  file->blobs = larger;
  file->num_places = places;
  return true;
}

uint64_t record_file_blob(record_file *file, const void *data, size_t size) {
  if (file->num_blobs * 2 >= file->num_places && !grow_blobs(file)) {
    if (file->descriptor >= 0) stop(file, "out of memory");
    return 0;
  }
  const digest hash = digest_of(data, size);
  size_t at = hash.low & (file->num_places - 1);
  for (; file->blobs[at].number != 0; at = (at + 1) & (file->num_places - 1)) {
    const blob_entry *entry = &file->blobs[at];
    if (entry->digest.low == hash.low && entry->digest.high == hash.high && entry->size == size) return entry->number;
  }
  file->blobs[at] = (blob_entry){hash, size, ++file->num_blobs};
  unsigned char number[10];
  record_bytes bytes = {number, 0, sizeof number, false};
  bytes_varint(&bytes, file->num_blobs);
  write_parts(file, RECORD_BLOB, number, bytes.size, data, size);
  return file->num_blobs;
}

void record_file_close(record_file *file) {
  if (file->descriptor < 0 || atomic_load(&is_forked_child)) return;
  if (file->window != NULL) munmap(file->window, WINDOW);
  file->window = NULL;
  if (file->is_mapped && ftruncate(file->descriptor, (off_t)file->size) != 0) errno = 0; /* zeros stay behind the end */
  close(file->descriptor);
  file->descriptor = -1;
}
