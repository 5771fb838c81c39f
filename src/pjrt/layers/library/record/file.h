/* The file of a recording: a stream of records, each written before the next call of the plugin begins.
 *
 *   "PJRTREC\n", then records: size (4 bytes) and CRC-32 (4 bytes) of what follows, kind (1 byte), contents.
 *
 * Numbers are little-endian; those of 7 bits a byte, the lowest first, are called varints. `pjrt.layers.recording` reads
 * the file. A file that is cut short is read up to its last whole record. */
#ifndef PJRT_LAYER_RECORD_FILE_H_
#define PJRT_LAYER_RECORD_FILE_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef enum {
  RECORD_HEADER = 1,         /* JSON: what recorded what */
  RECORD_NAME = 2,           /* varint number, text: the name that later records mean by the number */
  RECORD_BLOB = 3,           /* varint number, bytes: data that later records mean by the number */
  RECORD_CALL = 4,           /* varint call, thread, nanoseconds; name of the function; value of the arguments */
  RECORD_RETURN = 5,         /* varint call, nanoseconds that it took; value of the error; value of the results */
  RECORD_DATA = 6,           /* varint call; value: host memory that the call filled, once its event was ready */
  RECORD_CALLBACK = 7,       /* varint callback, function, thread; name of its type; values of the arguments, the error */
  RECORD_CALLBACK_RETURN = 8, /* varint callback; value of the results */
  RECORD_END = 9,            /* varint calls: the recording was closed, not cut short */
} record_kind;

/* Bytes that grow. A failed allocation makes `failed` true, and the recording ends there. */
typedef struct record_bytes {
  unsigned char *data;
  size_t size, capacity;
  bool failed;
} record_bytes;

void bytes_append(record_bytes *bytes, const void *data, size_t size);
void bytes_varint(record_bytes *bytes, uint64_t number);

typedef struct record_file record_file;

/* The path for a recording; for the second one of a process with the same path, and later ones, with a number before its
 * ending. */
bool record_file_path(const char *path, char *out, size_t size);
/* Opens the file anew; null, with the reason in `problem`, where that is not possible. */
record_file *record_file_open(const char *path, char *problem, size_t problem_size);
/* Writes one record. After an error of the disk nothing is written any more; the reason is printed once. */
void record_file_write(record_file *file, record_kind kind, const void *data, size_t size);
/* The number of a name that lives as long as the process; it is written before its first use. */
uint64_t record_file_name(record_file *file, const char *name);
/* The number of the data; data that is in the file already is not written again. */
uint64_t record_file_blob(record_file *file, const void *data, size_t size);
/* Whether records are still written: not after an error of the disk, nor after the file was closed. */
bool record_file_is_open(const record_file *file);
void record_file_close(record_file *file);

#endif /* PJRT_LAYER_RECORD_FILE_H_ */
