/* The little of protocol buffers that the plugin needs: reading fields in a row, writing varints and bytes, and the
 * two messages that matter to it, CompileOptionsProto and DeviceAssignmentProto. */
#include "tiny.h"

static bool read_varint(const char **cursor, const char *end, uint64_t *value) {
  *value = 0;
  for (int shift = 0; shift < 64 && *cursor < end; shift += 7) {
    unsigned char byte = (unsigned char)*(*cursor)++;
    *value |= (uint64_t)(byte & 0x7f) << shift;
    if (!(byte & 0x80)) return true;
  }
  return false;
}

static bool read_field(const char **cursor, const char *end, tiny_field *field) {
  uint64_t tag;
  if (*cursor >= end || !read_varint(cursor, end, &tag)) return false;
  memset(field, 0, sizeof *field);
  field->number = (int)(tag >> 3);
  field->wire = (int)(tag & 7);
  uint64_t size = 0;
  switch (field->wire) {
    case 0:
      return read_varint(cursor, end, &field->value);
    case 1:
      size = 8;
      break;
    case 2:
      if (!read_varint(cursor, end, &size)) return false;
      break;
    case 5:
      size = 4;
      break;
    default:
      return false;
  }
  if (size > (uint64_t)(end - *cursor)) return false;
  field->data = *cursor;
  field->size = (size_t)size;
  *cursor += size;
  return true;
}

/* The cursor stays before a field that is none, so that the caller sees that the end was not reached. */
bool proto_next(const char **cursor, const char *end, tiny_field *field) {
  const char *begin = *cursor;
  if (read_field(cursor, end, field)) return true;
  *cursor = begin;
  return false;
}

static void write_varint(tiny_bytes *out, uint64_t value) {
  do {
    char byte = (char)((value & 0x7f) | (value > 0x7f ? 0x80 : 0));
    bytes_add(out, &byte, 1);
    value >>= 7;
  } while (value);
}

void proto_varint(tiny_bytes *out, int number, uint64_t value) {
  write_varint(out, (uint64_t)number << 3);
  write_varint(out, value);
}

void proto_bytes(tiny_bytes *out, int number, const void *data, size_t size) {
  write_varint(out, (uint64_t)number << 3 | 2);
  write_varint(out, size);
  bytes_add(out, data, size);
}

size_t proto_int64s(const tiny_field *field, int64_t *out, size_t capacity) {
  if (field->wire == 0) {
    if (capacity) out[0] = (int64_t)field->value;
    return 1;
  }
  size_t count = 0;
  uint64_t value;
  const char *cursor = field->data, *end = field->data + field->size;
  while (cursor < end && read_varint(&cursor, end, &value)) {
    if (count < capacity) out[count] = (int64_t)value;
    ++count;
  }
  return count;
}

/* ---- DeviceAssignmentProto: one ComputationDevice for each partition, with a device for each replica ---------------*/
static tiny_status *parse_assignment(const char *data, size_t size, tiny_compile_options *out) {
  const char *cursor = data, *end = data + size;
  tiny_field field;
  int64_t partition = 0, replicas = 0, partitions = 0;
  int64_t by_partition[TINY_MAX_DEVICES] = {0};
  while (proto_next(&cursor, end, &field)) {
    if (field.number == 1) replicas = (int64_t)field.value;
    if (field.number == 2) partitions = (int64_t)field.value;
    if (field.number != 3) continue;
    const char *inner = field.data, *inner_end = field.data + field.size;
    tiny_field ids;
    int64_t seen = 0;
    while (proto_next(&inner, inner_end, &ids)) {
      int64_t at = partition * replicas + seen;
      if (ids.number == 1 && at < TINY_MAX_DEVICES)
        seen += (int64_t)proto_int64s(&ids, by_partition + at, (size_t)(TINY_MAX_DEVICES - at));
    }
    if (seen != replicas) return status_make(INVALID, "The device assignment names %lld of %lld replicas",
                                             (long long)seen, (long long)replicas);
    ++partition;
  }
  if (cursor != end || partition != partitions || replicas * partitions > TINY_MAX_DEVICES || replicas < 1)
    return status_make(INVALID, "The device assignment is malformed");
  out->num_replicas = replicas;
  out->num_partitions = partitions;
  out->has_assignment = true;
  for (int64_t r = 0; r < replicas; ++r) {
    for (int64_t p = 0; p < partitions; ++p) out->assignment[r * partitions + p] = by_partition[p * replicas + r];
  }
  return NULL;
}

void assignment_serialize(const tiny_compile_options *options, const int64_t *devices, tiny_bytes *out) {
  proto_varint(out, 1, (uint64_t)options->num_replicas);
  proto_varint(out, 2, (uint64_t)options->num_partitions);
  for (int64_t p = 0; p < options->num_partitions; ++p) {
    tiny_bytes ids = {0}, computation = {0};
    for (int64_t r = 0; r < options->num_replicas; ++r)
      write_varint(&ids, (uint64_t)devices[r * options->num_partitions + p]);
    proto_bytes(&computation, 1, ids.data, ids.size);
    proto_bytes(out, 3, computation.data, computation.size);
    free(ids.data);
    free(computation.data);
  }
}

/* ---- CompileOptionsProto ------------------------------------------------------------------------------------------*/
static tiny_status *parse_build_options(const char *data, size_t size, tiny_compile_options *out) {
  const char *cursor = data, *end = data + size;
  tiny_field field;
  int64_t replicas = 0, partitions = 0;
  tiny_status *status = NULL;
  while (status == NULL && proto_next(&cursor, end, &field)) {
    if (field.number == 1) out->device_ordinal = (int64_t)field.value;
    if (field.number == 4) replicas = (int64_t)field.value;
    if (field.number == 5) partitions = (int64_t)field.value;
    if (field.number == 9 && field.wire == 2) status = parse_assignment(field.data, field.size, out);
  }
  if (status) return status;
  if (cursor != end) return status_make(INVALID, "The executable build options are malformed");
  if (out->has_assignment) {
    if ((replicas && replicas != out->num_replicas) || (partitions && partitions != out->num_partitions))
      return status_make(INVALID, "The device assignment is %lld x %lld, the options say %lld x %lld",
                         (long long)out->num_replicas, (long long)out->num_partitions, (long long)replicas,
                         (long long)partitions);
    return NULL;
  }
  out->num_replicas = replicas ? replicas : 1;
  out->num_partitions = partitions ? partitions : 1;
  if (out->num_replicas < 1 || out->num_partitions < 1 || out->num_replicas > TINY_MAX_DEVICES ||
      out->num_partitions > TINY_MAX_DEVICES || out->num_replicas * out->num_partitions > TINY_MAX_DEVICES)
    return status_make(INVALID, "The tiny device takes at most %d devices a program, got %lld x %lld", TINY_MAX_DEVICES,
                       (long long)out->num_replicas, (long long)out->num_partitions);
  return NULL;
}

tiny_status *compile_options_parse(const char *data, size_t size, tiny_compile_options *out) {
  memset(out, 0, sizeof *out);
  out->num_replicas = out->num_partitions = 1;
  out->device_ordinal = -1;
  const char *cursor = data, *end = data + size;
  tiny_field field;
  tiny_status *status = NULL;
  while (status == NULL && proto_next(&cursor, end, &field)) {
    if (field.number == 3 && field.wire == 2) status = parse_build_options(field.data, field.size, out);
    if (field.number == 4) out->portable = field.value != 0;
  }
  if (status) return status;
  if (cursor != end) return status_make(INVALID, "The compile options are no CompileOptionsProto");
  return NULL;
}
