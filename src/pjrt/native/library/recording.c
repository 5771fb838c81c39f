/* What the devices of a driver in C did while a profiler recorded, as an XSpace.
 *
 * The runtime itself knows when it gave work to a queue and when that ended. As a queue does what it is told first, work
 * begins when it was given, or when what was before it ended. A driver may tell of more. */
#include <time.h>

#include "runtime.h"

enum { MOST_EVENTS = 1 << 20 };
#define OF_HOST SIZE_MAX /* what no device does */

typedef struct event {
  size_t device, line, name; /* the last two by their place among the names */
  int64_t begin, end;        /* of the monotonic clock */
} event;

struct recording {
  PJRT_Client *client;
  bool is_on;
  int64_t since; /* it was on: nothing is recorded of what began before */
  recording *next;
  event *events;
  size_t num_events, capacity, num_lost;
  char **names;
  size_t num_names;
  char wrong[128]; /* what a driver told that cannot be */
};

static atomic_int num_on;
static pthread_mutex_t switching = PTHREAD_MUTEX_INITIALIZER; /* held where one is switched on or off */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;     /* guards all recordings */
static recording *first;

/* ---- when work was given to a driver --------------------------------------------------------------------------------------*/
static const pjrt_driver_table *real;
static _Thread_local int64_t called;

int64_t recording_now(void) { return atomic_load_explicit(&num_on, memory_order_relaxed) ? monotonic_now() : 0; }

int64_t recording_called(void) {
  if (!atomic_load_explicit(&num_on, memory_order_relaxed)) return 0;
  int64_t time = called;
  called = 0;
  return time;
}

static void note(void) {
  if (atomic_load_explicit(&num_on, memory_order_relaxed)) called = monotonic_now();
}

static int copy_in(pjrt_driver *driver, size_t device, uint64_t memory, const pjrt_driver_shape *shape, size_t offset,
                   const void *host, size_t bytes, pjrt_fence *fence, char *message) {
  note();
  return real->copy_in(driver, device, memory, shape, offset, host, bytes, fence, message);
}

static int copy_out(pjrt_driver *driver, size_t device, uint64_t memory, const pjrt_driver_shape *shape, size_t offset,
                    void *host, size_t bytes, pjrt_fence *fence, char *message) {
  note();
  return real->copy_out(driver, device, memory, shape, offset, host, bytes, fence, message);
}

static int copy(pjrt_driver *driver, size_t device, uint64_t memory, size_t to_device, uint64_t to_memory, size_t bytes,
                pjrt_fence *fence, char *message) {
  note();
  return real->copy(driver, device, memory, to_device, to_memory, bytes, fence, message);
}

static int launch_program(pjrt_driver *driver, const pjrt_driver_launch *launch, pjrt_fence *fence, char *message) {
  note();
  return real->launch(driver, launch, fence, message);
}

const pjrt_driver_table *recording_table(const pjrt_driver_table *of) {
  static pjrt_driver_table table;
  memcpy(&table, of, of->struct_size < sizeof table ? of->struct_size : sizeof table);
  real = of;
  table.copy_in = copy_in;
  table.copy_out = copy_out;
  table.launch = launch_program;
  if (DRIVER_HAS(of, copy)) table.copy = copy;
  return &table;
}

/* ---- events -----------------------------------------------------------------------------------------------------------------*/
static size_t place_of(recording *each, const char *name) {
  for (size_t i = 0; i < each->num_names; ++i) {
    if (strcmp(each->names[i], name) == 0) return i;
  }
  char **names = new_zeroed(each->num_names + 1, sizeof *names);
  if (each->num_names) memcpy(names, each->names, each->num_names * sizeof *names);
  free(each->names);
  each->names = names;
  names[each->num_names] = copy_of(name, strlen(name));
  return each->num_names++;
}

static void add(recording *each, size_t device, const char *line, const char *name, int64_t begin, int64_t end) {
  if (each->num_events == MOST_EVENTS) {
    ++each->num_lost;
    return;
  }
  if (each->num_events == each->capacity) {
    size_t capacity = each->capacity ? 2 * each->capacity : 256;
    event *events = new_zeroed(capacity, sizeof *events);
    if (each->num_events) memcpy(events, each->events, each->num_events * sizeof *events);
    free(each->events);
    each->events = events;
    each->capacity = capacity;
  }
  each->events[each->num_events++] = (event){device, place_of(each, line), place_of(each, name), begin, end};
}

static void add_to_all(const PJRT_Client *client, size_t device, const char *line, const char *name, int64_t begin,
                       int64_t end) {
  pthread_mutex_lock(&mutex);
  for (recording *each = first; each; each = each->next) {
    if (each->client == client && each->is_on && begin >= each->since) add(each, device, line, name, begin, end);
  }
  pthread_mutex_unlock(&mutex);
}

void recording_work(const PJRT_Device *device, const work *of, int64_t begun) {
  if (begun == 0) return;
  add_to_all(device->client, device->number, of->program ? "launches" : "copies", of->program ? of->program : of->function,
             begun, monotonic_now());
}

void recording_host(const PJRT_Client *client, const char *line, const char *name, int64_t begun) {
  if (begun) add_to_all(client, OF_HOST, line, name, begun, monotonic_now());
}

/* A driver tells of an event. */
static void told(void *arg, size_t device, const char *line, const char *name, int64_t begin, int64_t end) {
  const PJRT_Client *client = arg;
  if (device < client->num_devices && line && name && begin <= end) {
    add_to_all(client, device, line, name, begin, end);
    return;
  }
  pthread_mutex_lock(&mutex);
  for (recording *each = first; each; each = each->next) {
    if (each->client == client)
      snprintf(each->wrong, sizeof each->wrong, "the driver told of an event of device %zu, line %.20s, from %lld to %lld",
               device, line ? line : "null", (long long)begin, (long long)end);
  }
  pthread_mutex_unlock(&mutex);
}

/* ---- recordings ---------------------------------------------------------------------------------------------------------------*/
recording *recording_make(PJRT_Client *client) {
  recording *each = new_zeroed(1, sizeof *each);
  each->client = client;
  pthread_mutex_lock(&mutex);
  each->next = first;
  first = each;
  pthread_mutex_unlock(&mutex);
  return each;
}

static PJRT_Error *trace(const PJRT_Client *client, pjrt_driver_event function) {
  char message[PJRT_DRIVER_MESSAGE_SIZE] = "";
  if (!DRIVER_HAS(client->table, trace)) return NULL;
  return error_of_driver("trace", client->table->trace(client->driver, function, (void *)client, message), message);
}

PJRT_Error *recording_switch(recording *each, bool is_on) {
  PJRT_Error *error = NULL;
  pthread_mutex_lock(&switching);
  pthread_mutex_lock(&mutex);
  bool changes = each->is_on != is_on, others = false;
  for (const recording *other = first; other; other = other->next)
    others = others || (other != each && other->client == each->client && other->is_on);
  each->is_on = is_on;
  each->since = monotonic_now();
  pthread_mutex_unlock(&mutex);
  if (changes) atomic_fetch_add(&num_on, is_on ? 1 : -1);
  if (changes && !others) error = trace(each->client, is_on ? told : NULL);
  pthread_mutex_unlock(&switching);
  return error;
}

void recording_free(recording *owned) {
  pjrt_error_release(recording_switch(owned, false));
  pthread_mutex_lock(&mutex);
  recording **at = &first;
  while (*at != owned) at = &(*at)->next;
  *at = owned->next;
  pthread_mutex_unlock(&mutex);
  for (size_t i = 0; i < owned->num_names; ++i) free(owned->names[i]);
  free(owned->names);
  free(owned->events);
  free(owned);
}

/* ---- the XSpace ----------------------------------------------------------------------------------------------------------------
 * XSpace {1 planes, 3 warnings}; XPlane {1 id, 2 name, 3 lines, 4 names of events by their numbers}; XLine {1 id, 2 name, 3 when
 * it begins, in nanoseconds since 1970, 4 events}; XEvent {1 number of its name, 2 picoseconds since the line began, 3 how many
 * it takes}. */
static void add_message(bytes *out, int number, bytes *owned) {
  proto_bytes(out, number, owned->data, owned->size);
  free(owned->data);
}

static void add_text(bytes *out, int number, const char *text) { proto_bytes(out, number, text, strlen(text)); }

static int64_t since_1970(void) { /* of the monotonic clock's zero */
  struct timespec time;
  clock_gettime(CLOCK_REALTIME, &time);
  return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec - monotonic_now();
}

static void write_line(const recording *each, size_t device, size_t line, bytes *plane) {
  bytes out = {0};
  int64_t begin = INT64_MAX;
  for (size_t i = 0; i < each->num_events; ++i) {
    const event *it = &each->events[i];
    if (it->device == device && it->line == line && it->begin < begin) begin = it->begin;
  }
  if (begin == INT64_MAX) return;
  proto_varint(&out, 1, line + 1);
  add_text(&out, 2, each->names[line]);
  proto_varint(&out, 3, (uint64_t)(begin + since_1970()));
  for (size_t i = 0; i < each->num_events; ++i) {
    const event *it = &each->events[i];
    if (it->device != device || it->line != line) continue;
    bytes inner = {0};
    proto_varint(&inner, 1, it->name + 1);
    proto_varint(&inner, 2, (uint64_t)(it->begin - begin) * 1000);
    proto_varint(&inner, 3, (uint64_t)(it->end - it->begin) * 1000);
    add_message(&out, 4, &inner);
  }
  add_message(plane, 3, &out);
}

static void write_plane(const recording *each, size_t device, size_t number, bytes *space) {
  bytes out = {0};
  char *name = device == OF_HOST ? printed("/device:CUSTOM:%s:host", each->client->topology->facts.platform)
                                 : printed("/device:CUSTOM:%s:%d", each->client->topology->facts.platform,
                                           each->client->devices[device].description->id);
  proto_varint(&out, 1, number);
  add_text(&out, 2, name);
  free(name);
  size_t begin = out.size;
  for (size_t line = 0; line < each->num_names; ++line) write_line(each, device, line, &out);
  for (size_t i = 0; i < each->num_names && out.size > begin; ++i) {
    bytes entry = {0}, metadata = {0};
    proto_varint(&metadata, 1, i + 1);
    add_text(&metadata, 2, each->names[i]);
    proto_varint(&entry, 1, i + 1);
    add_message(&entry, 2, &metadata);
    add_message(&out, 4, &entry);
  }
  if (out.size > begin) proto_bytes(space, 1, out.data, out.size);
  free(out.data);
}

void recording_write(const recording *each, bytes *space) {
  pthread_mutex_lock(&mutex);
  for (size_t i = 0; i < each->client->num_devices; ++i) write_plane(each, i, i + 1, space);
  write_plane(each, OF_HOST, each->client->num_devices + 1, space);
  char *lost = printed("%zu events were not recorded: a session has room for %d", each->num_lost, MOST_EVENTS);
  if (each->num_lost) add_text(space, 3, lost);
  free(lost);
  if (each->wrong[0]) add_text(space, 3, each->wrong);
  pthread_mutex_unlock(&mutex);
}
