#include "record_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

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

struct record_file {
  FILE *stream;
  char *path;
  record_bytes head; /* the record being put together, but for large data */
  blob_entry *blobs; /* hash table; the number of places is a power of 2 */
  size_t num_places, num_blobs;
  name_entry *names; /* hash table by the address of the text: names are constants of the schema */
  size_t num_name_places, num_names;
};

record_file *record_file_open(const char *path, char *problem, size_t problem_size) {
  record_file *file = calloc(1, sizeof *file);
  FILE *stream = fopen(path, "wb");
  if (file != NULL) file->path = malloc(strlen(path) + 1);
  if (stream == NULL || file == NULL || file->path == NULL) {
    snprintf(problem, problem_size, "cannot write the recording %s: %s", path, strerror(errno));
    if (stream != NULL) fclose(stream);
    if (file != NULL) free(file->path);
    free(file);
    return NULL;
  }
  strcpy(file->path, path);
  file->stream = stream;
  setvbuf(stream, NULL, _IONBF, 0); /* a process that dies loses nothing that was written before */
  make_crc_table();
  fwrite("PJRTREC\n", 1, 8, stream);
  return file;
}

bool record_file_is_open(const record_file *file) { return file->stream != NULL; }

static void put32(unsigned char *out, uint32_t value) {
  for (int i = 0; i < 4; i++) out[i] = (unsigned char)(value >> 8 * i);
}

static void stop(record_file *file, const char *reason) {
  fprintf(stderr, "pjrt: the recording %s ends here, and the program goes on without it: %s\n", file->path, reason);
  fclose(file->stream);
  file->stream = NULL;
}

/* Writes a record of two parts; the second may be large, and is not copied. */
static void write_parts(record_file *file, record_kind kind, const void *first, size_t first_size, const void *second,
                        size_t second_size) {
  if (file->stream == NULL) return;
  if (second_size > UINT32_MAX - 64 - first_size) {
    stop(file, "a record must be smaller than 4 GB");
    return;
  }
  record_bytes *head = &file->head;
  head->size = 0;
  unsigned char frame[9];
  frame[8] = (unsigned char)kind;
  uint32_t crc = crc_add(0xFFFFFFFFu, frame + 8, 1);
  crc = crc_add(crc, first, first_size);
  crc = crc_add(crc, second, second_size);
  put32(frame, (uint32_t)(1 + first_size + second_size));
  put32(frame + 4, ~crc);
  const bool small = second_size < 4096;
  bytes_append(head, frame, sizeof frame);
  bytes_append(head, first, first_size);
  if (small) bytes_append(head, second, second_size);
  if (head->failed) {
    stop(file, "out of memory");
    return;
  }
  errno = 0;
  if (fwrite(head->data, 1, head->size, file->stream) != head->size ||
      (!small && fwrite(second, 1, second_size, file->stream) != second_size))
    stop(file, strerror(errno));
}

void record_file_write(record_file *file, record_kind kind, const void *data, size_t size) {
  write_parts(file, kind, data, size, NULL, 0);
}

uint64_t record_file_name(record_file *file, const char *name) {
  if (file->num_names * 2 >= file->num_name_places) {
    const size_t places = file->num_name_places ? file->num_name_places * 2 : 512;
    name_entry *larger = calloc(places, sizeof *larger);
    if (larger == NULL) {
      if (file->stream != NULL) stop(file, "out of memory");
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
    if (file->stream != NULL) stop(file, "out of memory");
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
  if (file->stream == NULL) return;
  fclose(file->stream);
  file->stream = NULL;
}
