/* The process that compiles: Python, which the framework's process never holds.
 *
 * It is started when the first program must be compiled, as `python -m pjrt.native.compiling SPEC FOLDER`, and ends when
 * its end of the socket, its standard input, is closed: with the client or with this process, however that ends. A
 * message is its length in eight bytes, least significant first, and fields of protocol buffers. A request is
 * {1 format, 2 program, 3 compile options, 4 name of the platform, 5 number of devices}; an answer {1 status code,
 * 2 message, 3 what executable_read reads}. */
#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime.h"

extern char **environ;

struct compiler {
  pthread_mutex_t mutex;
  pid_t process, owner; /* 0: none was started; a forked process starts its own */
  int socket;
};

/* An answer is an executable: more than this is a mistake. */
static const uint64_t LARGEST_ANSWER = UINT64_C(1) << 36;

compiler *compiler_make(void) {
  compiler *each = new_zeroed(1, sizeof *each);
  pthread_mutex_init(&each->mutex, NULL);
  each->socket = -1;
  return each;
}

/* Closes the socket, which ends the process, and waits for its end; writes how it ended. */
static void stop(compiler *each, char *ending, size_t size) {
  snprintf(ending, size, "no reason is known");
  if (each->socket >= 0) close(each->socket);
  each->socket = -1;
  if (each->process && each->owner == getpid()) {
    int status = 0;
    pid_t waited;
    while ((waited = waitpid(each->process, &status, 0)) < 0 && errno == EINTR) {
    }
    if (waited > 0 && WIFEXITED(status)) snprintf(ending, size, "it ended with exit status %d", WEXITSTATUS(status));
    if (waited > 0 && WIFSIGNALED(status)) snprintf(ending, size, "signal %d ended it", WTERMSIG(status));
  }
  each->process = 0;
}

void compiler_free(compiler *each) {
  if (each == NULL) return;
  char ending[64];
  stop(each, ending, sizeof ending);
  pthread_mutex_destroy(&each->mutex);
  free(each);
}

static PJRT_Error *spawn(compiler *each, const char *python, const char *spec, int theirs) {
  const char *folder = setting("path");
  char *arguments[] = {(char *)python, "-P", "-m", "pjrt.native.compiling", (char *)spec, (char *)(folder ? folder : ""),
                       NULL};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, theirs, 0);
  posix_spawn_file_actions_adddup2(&actions, 2, 1); /* what it prints is nobody's answer */
  int failed = posix_spawnp(&each->process, python, &actions, NULL, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  if (!failed) {
    each->owner = getpid();
    return NULL;
  }
  each->process = 0;
  return error_make(PJRT_Error_Code_UNAVAILABLE,
                    "the process that compiles could not be started: %s: %s; name a Python that has pjrt and the device "
                    "in PJRT_WORKER_PYTHON", python, strerror(failed));
}

static PJRT_Error *start(compiler *each) {
  if (each->process && each->owner == getpid()) return NULL;
  if (each->socket >= 0) close(each->socket); /* of the process that was forked */
  each->socket = -1;
  each->process = 0;
  const char *spec = setting("compiler"), *python = getenv("PJRT_WORKER_PYTHON");
  if (spec == NULL)
    return error_make(PJRT_Error_Code_UNIMPLEMENTED,
                      "this library has no compiler: it only runs executables that were serialized");
  if (python == NULL || *python == 0) python = setting("python");
  if (python == NULL) python = "python3";
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return error_make(PJRT_Error_Code_UNAVAILABLE, "no socket to the process that compiles: %s", strerror(errno));
  PJRT_Error *error = spawn(each, python, spec, ends[1]);
  close(ends[1]);
  if (error) close(ends[0]);
  else each->socket = ends[0];
  return error;
}

static bool write_all(int socket, const char *data, size_t size) {
  while (size) {
    ssize_t written = send(socket, data, size, MSG_NOSIGNAL);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    data += written;
    size -= (size_t)written;
  }
  return true;
}

static bool read_all(int socket, char *data, size_t size) {
  while (size) {
    ssize_t got = recv(socket, data, size, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    data += got;
    size -= (size_t)got;
  }
  return true;
}

static bool send_message(int socket, const bytes *message) {
  unsigned char head[8];
  for (int i = 0; i < 8; ++i) head[i] = (unsigned char)((uint64_t)message->size >> 8 * i);
  return write_all(socket, (const char *)head, sizeof head) && write_all(socket, message->data, message->size);
}

static bool receive_message(int socket, char **out, size_t *size) {
  unsigned char head[8];
  if (!read_all(socket, (char *)head, sizeof head)) return false;
  uint64_t length = 0;
  for (int i = 0; i < 8; ++i) length |= (uint64_t)head[i] << 8 * i;
  if (length > LARGEST_ANSWER) return false;
  char *data = malloc(length ? length : 1);
  if (data == NULL || !read_all(socket, data, length)) {
    free(data);
    return false;
  }
  *out = data;
  *size = length;
  return true;
}

static PJRT_Error *exchange(compiler *each, const bytes *request, char **answer, size_t *size) {
  PJRT_Error *error = start(each);
  if (error) return error;
  if (send_message(each->socket, request) && receive_message(each->socket, answer, size)) return NULL;
  char ending[64];
  stop(each, ending, sizeof ending);
  return error_make(PJRT_Error_Code_UNAVAILABLE,
                    "the process that compiles gave no answer, %s; its output is above, and the next program starts a "
                    "new one", ending);
}

static PJRT_Error *read_answer(const char *data, size_t size, char **out, size_t *out_size) {
  const char *cursor = data, *end = data + size, *message = "";
  size_t message_size = 0;
  uint64_t code = 0;
  proto_field field;
  *out = NULL;
  while (proto_next(&cursor, end, &field)) {
    if (field.number == 1 && field.wire == 0) code = field.value;
    if (field.number == 2 && field.wire == 2) message = field.data, message_size = field.size;
    if (field.number == 3 && field.wire == 2 && *out == NULL) {
      *out = copy_of(field.data, field.size);
      *out_size = field.size;
    }
  }
  PJRT_Error *error = NULL;
  if (cursor != end || (code == 0 && *out == NULL) || code > PJRT_Error_Code_UNAUTHENTICATED)
    error = error_make(PJRT_Error_Code_INTERNAL, "the process that compiles gave an answer that cannot be read");
  else if (code)
    error = pjrt_error_new((PJRT_Error_Code)code, message, message_size);
  if (error) {
    free(*out);
    *out = NULL;
  }
  return error;
}

PJRT_Error *compiler_compile(compiler *each, const PJRT_Program *program, const char *options, size_t options_size,
                             const PJRT_TopologyDescription *topology, char **out, size_t *out_size) {
  bytes request = {0};
  proto_bytes(&request, 1, program->format, program->format_size);
  proto_bytes(&request, 2, program->code, program->code_size);
  proto_bytes(&request, 3, options, options_size);
  proto_bytes(&request, 4, topology->platform_name, strlen(topology->platform_name));
  proto_varint(&request, 5, topology->num_devices);
  char *answer = NULL;
  size_t size = 0;
  pthread_mutex_lock(&each->mutex);
  PJRT_Error *error = exchange(each, &request, &answer, &size);
  pthread_mutex_unlock(&each->mutex);
  if (!error) error = read_answer(answer, size, out, out_size);
  free(answer);
  free(request.data);
  return error;
}
