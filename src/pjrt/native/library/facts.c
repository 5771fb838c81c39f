/* What is known of a client and its devices, as a driver describes them; and its form as a message, in which a worker
 * tells it and a topology is serialized. The message's fields:
 *   1 platform, 2 its version, 3 process index, 4 a device, 5 an attribute, 6 the topology's name, 7 an attribute of the
 *   plugin, 8 whether memories say how they lay out arrays
 * of a device: 1 kind, 2 a kind of memory, 3 its limit, 4 id, 5 process index, 6 whether it is addressable, 7 local id,
 *   8 text, 9 longer text, 10 an attribute
 * of an attribute: 1 name, 2 type, 3 text, 4 integers, 5 the bits of a real number. */
#include "runtime.h"

static void write_text(bytes *out, int number, const char *text) {
  if (text) proto_bytes(out, number, text, strlen(text));
}

static void write_attribute(bytes *out, int number, const pjrt_driver_attribute *each) {
  bytes inner = {0};
  uint32_t real;
  memcpy(&real, &each->real, sizeof real);
  write_text(&inner, 1, each->name);
  proto_varint(&inner, 2, (uint64_t)each->type);
  write_text(&inner, 3, each->text);
  for (size_t i = 0; i < each->num_integers; ++i) proto_varint(&inner, 4, (uint64_t)each->integers[i]);
  proto_varint(&inner, 5, real);
  proto_bytes(out, number, inner.data, inner.size);
  free(inner.data);
}

void facts_write_client(bytes *out, const char *platform, const char *topology, const pjrt_driver_client *each) {
  write_text(out, 1, platform);
  write_text(out, 2, each->platform_version);
  proto_varint(out, 3, (uint64_t)each->process_index);
  for (size_t i = 0; i < each->num_attributes; ++i) write_attribute(out, 5, &each->attributes[i]);
  write_text(out, 6, topology);
}

void facts_write_device(bytes *out, const pjrt_driver_device *each) {
  bytes inner = {0};
  write_text(&inner, 1, each->kind);
  for (size_t i = 0; i < each->num_memory_kinds; ++i) {
    write_text(&inner, 2, each->memory_kinds[i]);
    proto_varint(&inner, 3, each->memory_limits ? (uint64_t)each->memory_limits[i] : 0);
  }
  proto_varint(&inner, 4, (uint64_t)each->id);
  proto_varint(&inner, 5, (uint64_t)each->process_index);
  proto_varint(&inner, 6, each->is_addressable != 0);
  proto_varint(&inner, 7, (uint64_t)each->local_hardware_id);
  write_text(&inner, 8, each->text);
  write_text(&inner, 9, each->debug_text);
  for (size_t i = 0; i < each->num_attributes; ++i) write_attribute(&inner, 10, &each->attributes[i]);
  proto_bytes(out, 4, inner.data, inner.size);
  free(inner.data);
}

static size_t count_of(const char *data, size_t size, int number) {
  const char *cursor = data;
  proto_field field;
  size_t count = 0;
  while (proto_next(&cursor, data + size, &field)) count += field.number == number;
  return count;
}

static void read_text(const proto_field *field, int number, const char **out) {
  if (field->number == number && field->wire == 2 && *out == NULL) *out = copy_of(field->data, field->size);
}

static void read_int(const proto_field *field, int number, int *out) {
  if (field->number == number && field->wire == 0) *out = (int)field->value;
}

static bool read_attribute(const proto_field *from, pjrt_driver_attribute *out) {
  const char *cursor = from->data, *end = from->data + from->size;
  int64_t *integers = new_zeroed(from->size, sizeof *integers); /* each takes a byte at least */
  int type = PJRT_DRIVER_TEXT;
  proto_field field;
  out->integers = integers;
  while (proto_next(&cursor, end, &field)) {
    read_text(&field, 1, &out->name);
    read_int(&field, 2, &type);
    read_text(&field, 3, &out->text);
    if (field.number == 4)
      out->num_integers += proto_int64s(&field, integers + out->num_integers, from->size - out->num_integers);
    if (field.number == 5 && field.wire == 0) memcpy(&out->real, &(uint32_t){(uint32_t)field.value}, sizeof out->real);
  }
  out->type = (pjrt_driver_attribute_type)type;
  if (out->text == NULL) out->text = copy_of("", 0);
  bool is_number = type == PJRT_DRIVER_INTEGER || type == PJRT_DRIVER_BOOLEAN;
  return cursor == end && out->name && type >= 0 && type <= PJRT_DRIVER_BOOLEAN && (!is_number || out->num_integers == 1);
}

static bool read_attributes(const char *data, size_t size, int number, const pjrt_driver_attribute **out, size_t *count) {
  pjrt_driver_attribute *attributes = new_zeroed(count_of(data, size, number), sizeof *attributes);
  const char *cursor = data;
  proto_field field;
  bool is_right = true;
  *out = attributes;
  while (is_right && proto_next(&cursor, data + size, &field))
    if (field.number == number) is_right = field.wire == 2 && read_attribute(&field, &attributes[(*count)++]);
  return is_right;
}

static bool read_device(const proto_field *from, pjrt_driver_device *out) {
  const char *cursor = from->data, *end = from->data + from->size;
  size_t most = count_of(from->data, from->size, 2), limits = 0;
  const char **kinds = new_zeroed(most, sizeof *kinds);
  int64_t *sizes = new_zeroed(most, sizeof *sizes);
  proto_field field;
  *out = (pjrt_driver_device){.struct_size = sizeof *out, .memory_kinds = kinds, .memory_limits = sizes};
  while (proto_next(&cursor, end, &field)) {
    read_text(&field, 1, &out->kind);
    if (field.number == 2 && field.wire == 2) kinds[out->num_memory_kinds++] = copy_of(field.data, field.size);
    if (field.number == 3) limits += proto_int64s(&field, sizes + limits, most - limits);
    if (limits > most) return false;
    read_int(&field, 4, &out->id);
    read_int(&field, 5, &out->process_index);
    read_int(&field, 6, &out->is_addressable);
    read_int(&field, 7, &out->local_hardware_id);
    read_text(&field, 8, &out->text);
    read_text(&field, 9, &out->debug_text);
  }
  return cursor == end && out->kind && out->num_memory_kinds == most &&
         read_attributes(from->data, from->size, 10, &out->attributes, &out->num_attributes);
}

bool facts_read(facts *out, const char *data, size_t size) {
  *out = (facts){.client.struct_size = sizeof out->client};
  out->devices = new_zeroed(count_of(data, size, 4), sizeof *out->devices);
  const char *cursor = data;
  proto_field field;
  bool is_right = true;
  while (is_right && proto_next(&cursor, data + size, &field)) {
    read_text(&field, 1, &out->platform);
    read_text(&field, 2, &out->client.platform_version);
    read_int(&field, 3, &out->client.process_index);
    if (field.number == 4) is_right = field.wire == 2 && read_device(&field, &out->devices[out->num_devices++]);
    read_text(&field, 6, &out->topology);
    if (field.number == 8 && field.wire == 0) out->has_layouts = field.value != 0;
  }
  if (out->client.platform_version == NULL) out->client.platform_version = copy_of("", 0);
  out->client.platform_name = out->platform;
  bool has_attributes = read_attributes(data, size, 5, &out->client.attributes, &out->client.num_attributes);
  has_attributes &= read_attributes(data, size, 7, &out->client.plugin_attributes, &out->client.num_plugin_attributes);
  return is_right && cursor == data + size && out->platform && out->num_devices && has_attributes;
}

static void free_attributes(const pjrt_driver_attribute *attributes, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    free((char *)attributes[i].name);
    free((char *)attributes[i].text);
    free((int64_t *)attributes[i].integers);
  }
  free((pjrt_driver_attribute *)attributes);
}

void facts_free(facts *each) {
  for (size_t i = 0; i < each->num_devices; ++i) {
    pjrt_driver_device *device = &each->devices[i];
    for (size_t j = 0; j < device->num_memory_kinds; ++j) free((char *)device->memory_kinds[j]);
    free((char **)device->memory_kinds);
    free((int64_t *)device->memory_limits);
    free((char *)device->kind);
    free((char *)device->text);
    free((char *)device->debug_text);
    free_attributes(device->attributes, device->num_attributes);
  }
  free(each->devices);
  free((char *)each->platform);
  free((char *)each->topology);
  free((char *)each->client.platform_version);
  free_attributes(each->client.attributes, each->client.num_attributes);
  free_attributes(each->client.plugin_attributes, each->client.num_plugin_attributes);
  *each = (facts){0};
}

/* ---- layouts of memories in Python --------------------------------------------------------------------------------------
 * The question has numbers of 8 bytes: the device, the kind of memory, the element type, the number of dimensions, their
 * sizes, and their order where that is not of rows. The answer's number is the bytes; its data has the bits of packed
 * elements, the number of tiles, the rank of each, and the sizes of all. */
struct known_layout {
  known_layout *next; /* in its bucket */
  size_t key_size;
  int64_t *key;
  size_t bytes, element_bits, num_tiles;
  size_t *tile_ranks;
  int64_t *tile_dims;
};

static known_layout *find_layout(const known_layouts *known, const int64_t *key, size_t size) {
  known_layout *each = known->buckets[fingerprint_of(0, key, size) % LAYOUT_BUCKETS];
  while (each && (each->key_size != size || memcmp(each->key, key, size) != 0)) each = each->next;
  return each;
}

static void free_layout(known_layout *each) {
  free(each->key);
  free(each->tile_ranks);
  free(each->tile_dims);
  free(each);
}

/* Null where the answer cannot be. */
static known_layout *read_layout(const answer *from, const int64_t *key, size_t size) {
  size_t count = from->data_size / sizeof(int64_t), at = 2;
  int64_t *numbers = copy_of(from->data, from->data_size);
  known_layout *out = new_zeroed(1, sizeof *out);
  bool is_right = count >= at && from->data_size % sizeof(int64_t) == 0 && numbers[1] >= 0 && (uint64_t)numbers[1] <= count - at;
  if (is_right) {
    out->bytes = from->number;
    out->element_bits = (size_t)numbers[0];
    out->num_tiles = (size_t)numbers[1];
    out->tile_ranks = new_zeroed(out->num_tiles, sizeof *out->tile_ranks);
    at += out->num_tiles;
    size_t total = 0;
    for (size_t i = 0; i < out->num_tiles; ++i) {
      is_right &= numbers[2 + i] > 0 && numbers[2 + i] <= MAX_RANK;
      total += out->tile_ranks[i] = (size_t)numbers[2 + i];
    }
    is_right &= total == count - at;
    out->tile_dims = copy_of(numbers + at, (count - at) * sizeof(int64_t));
  }
  free(numbers);
  out->key = copy_of(key, size);
  out->key_size = size;
  if (is_right) return out;
  free_layout(out);
  return NULL;
}

int ask_for_layout(known_layouts *known, pthread_mutex_t *mutex, ask_function ask, pjrt_driver *driver, size_t device,
                   size_t kind, const pjrt_driver_shape *shape, pjrt_driver_layout *layout, char *message) {
  int64_t key[4 + 2 * MAX_RANK] = {(int64_t)device, (int64_t)kind, shape->type, (int64_t)shape->rank};
  memcpy(key + 4, shape->dims, shape->rank * sizeof *key);
  if (shape->minor_to_major) memcpy(key + 4 + shape->rank, shape->minor_to_major, shape->rank * sizeof *key);
  size_t size = (4 + shape->rank * (shape->minor_to_major ? 2 : 1)) * sizeof *key;
  pthread_mutex_lock(mutex);
  const known_layout *found = find_layout(known, key, size);
  pthread_mutex_unlock(mutex);
  if (found == NULL) {
    bytes request = {0};
    proto_bytes(&request, 1, "layout", 6);
    proto_bytes(&request, 6, key, size);
    answer given;
    PJRT_Error *error = ask(driver, &request, &given);
    free(request.data);
    if (error) return error_give(error, message);
    known_layout *made = read_layout(&given, key, size);
    answer_free(&given);
    if (made == NULL) {
      snprintf(message, PJRT_DRIVER_MESSAGE_SIZE, "the device's process gave a layout that cannot be read");
      return PJRT_Error_Code_INTERNAL;
    }
    pthread_mutex_lock(mutex);
    found = find_layout(known, key, size); /* another thread may have been faster */
    if (found) {
      free_layout(made);
    } else {
      known_layout **bucket = &known->buckets[fingerprint_of(0, key, size) % LAYOUT_BUCKETS];
      made->next = *bucket;
      found = *bucket = made;
    }
    pthread_mutex_unlock(mutex);
  }
  layout->bytes = found->bytes;
  layout->element_bits = found->element_bits;
  layout->num_tiles = found->num_tiles;
  layout->tile_ranks = found->tile_ranks;
  layout->tile_dims = found->tile_dims;
  return 0;
}

void known_layouts_free(known_layouts *known) {
  for (size_t i = 0; i < LAYOUT_BUCKETS; ++i) {
    while (known->buckets[i]) {
      known_layout *each = known->buckets[i];
      known->buckets[i] = each->next;
      free_layout(each);
    }
  }
}

/* As PJRT names them; the values are the caller's own. */
void facts_attributes(named_values *out, const pjrt_driver_attribute *attributes, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const pjrt_driver_attribute *each = &attributes[i];
    PJRT_NamedValue value = {.type = (PJRT_NamedValue_Type)each->type, .value_size = 1};
    switch (each->type) {
      case PJRT_DRIVER_TEXT: value.string_value = each->text, value.value_size = strlen(each->text); break;
      case PJRT_DRIVER_INTEGER: value.int64_value = each->integers[0]; break;
      case PJRT_DRIVER_INTEGERS: value.int64_array_value = each->integers, value.value_size = each->num_integers; break;
      case PJRT_DRIVER_REAL: value.float_value = each->real; break;
      case PJRT_DRIVER_BOOLEAN: value.bool_value = each->integers[0] != 0; break;
    }
    named_value_add(out, each->name, strlen(each->name), &value);
  }
}
