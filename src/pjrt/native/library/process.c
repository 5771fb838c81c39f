/* A Python process of ours, and the messages that it gets and gives.
 *
 * It runs `python -m MODULE SPEC FOLDER`, and ends when its end of the socket, its standard input, is closed: with the
 * client or with this process, however that ends. A message is its length in eight bytes, least significant first, and
 * fields of protocol buffers. A request is {1 method, 2 format, 3 program, 4 compile options, 5 a number, 6 bytes,
 * 7 an option of the client, 8 the name of a handler, 11 a custom call that is divided by functions of this process, 12
 * its traits}; an answer {1 status code, 2 message, 3 bytes, 4 a number}.
 *
 * A process asks this one, too: for calls of handlers (see ffi.c), how custom calls are divided (partitioner.c), and for
 * the key-value store of a job. It does so on a second socket, its descriptor 4. The answer has the number of the
 * question: several may be open at a time.
 *
 * A process that several others share listens at a name of the user and the device. Each of them gives it the files that a
 * process of its own inherits, and gets a file that can be read when it has ended. It ends with the last of them. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime.h"

extern char **environ;

struct questions {
  atomic_int refs, idle; /* threads that answer, and one; those that have nothing to do */
  int socket;
  const process *of;              /* only to compare with: it may be gone; null for this one */
  const pjrt_driver_store *store; /* null where there is none */
  pthread_mutex_t reads, writes;
};

struct process {
  process *next; /* of all */
  pthread_mutex_t mutex;
  const char *module, *does; /* what it runs, and the word for that in errors */
  pid_t owner;               /* 0: none runs; a forked process has none */
  pid_t pid;                 /* 0 where it is no child of this process */
  int end;                   /* a file that can be read when it has ended */
  int line;                  /* where it serves others, too: the socket, as long as this exists; else -1 */
  int socket, shared;        /* a file that it inherits as its descriptor 3; -1 for none */
  size_t names;              /* the handlers that it knows of */
  uint64_t partitioners;     /* the latest one that it knows of */
  questions *questions;      /* where it may ask */
  const pjrt_driver_store *store;
  bool asks, starts_again, serves_others;
  printout *printout; /* of the latest; null for none */
  char ending[64];
};

/* The process that waits for what this thread answers; null for none. */
static _Thread_local const process *answering;

/* An answer may be an executable: more than this is a mistake. */
static const uint64_t LARGEST_ANSWER = UINT64_C(1) << 36;
enum { PATIENCE_MS = 2000, ATTEMPTS = 2000, LEFT = 64 };

/* ---- forks of this process -----------------------------------------------------------------------------------------------*/
static pthread_mutex_t all_mutex = PTHREAD_MUTEX_INITIALIZER; /* guards what follows; none is started meanwhile */
static process *all;
static pid_t left[LEFT]; /* children that others still use; 0 for none */

static void before_fork(void) { pthread_mutex_lock(&all_mutex); }

static void after_fork(void) { pthread_mutex_unlock(&all_mutex); }

/* A process of ours ends when its socket is closed everywhere: a fork keeps none. It has no thread that would let go of a
 * mutex, either, or that reads. */
static void in_fork(void) {
  for (process *each = all; each; each = each->next) {
    pthread_mutex_init(&each->mutex, NULL);
    if (each->socket >= 0) close(each->socket);
    if (each->end >= 0) close(each->end);
    if (each->line >= 0) close(each->line);
    if (each->questions) close(each->questions->socket);
    each->socket = each->end = each->line = -1;
    each->owner = each->pid = 0;
    each->questions = NULL;
    each->printout = NULL;
  }
  memset(left, 0, sizeof left);
  pthread_mutex_unlock(&all_mutex);
}

static void watch_forks(void) { pthread_atfork(before_fork, after_fork, in_fork); }

process *process_make(const char *module, const char *does, int shared, const pjrt_driver_store *store) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, watch_forks);
  process *each = new_zeroed(1, sizeof *each);
  *each = (process){.module = module, .does = does, .end = -1, .line = -1, .socket = -1, .shared = shared, .store = store,
                    .asks = shared >= 0, .starts_again = shared < 0};
  snprintf(each->ending, sizeof each->ending, "it was not started in this process");
  pthread_mutex_init(&each->mutex, NULL);
  pthread_mutex_lock(&all_mutex);
  each->next = all;
  all = each;
  pthread_mutex_unlock(&all_mutex);
  return each;
}

void process_let_ask(process *each) { each->asks = true; }

void process_share(process *each) { each->serves_others = true; }

/* ---- messages --------------------------------------------------------------------------------------------------------------*/
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

/* ---- what the process asks ----------------------------------------------------------------------------------------------*/
static void questions_unref(questions *each) {
  if (each == NULL || atomic_fetch_sub(&each->refs, 1) != 1) return;
  close(each->socket);
  pthread_mutex_destroy(&each->reads);
  pthread_mutex_destroy(&each->writes);
  free(each);
}

/* A question to the key-value store is {1 key, 2 a value to put, 3 milliseconds to wait for one}. */
static PJRT_Error *ask_store(const pjrt_driver_store *store, const proto_field *question, bytes *results) {
  const char *cursor = question->data, *end = question->data + question->size;
  proto_field field, key = {0}, value = {0};
  int64_t milliseconds = 0;
  while (proto_next(&cursor, end, &field)) {
    if (field.number == 1 && field.wire == 2) key = field;
    if (field.number == 2 && field.wire == 2) value = field;
    if (field.number == 3 && field.wire == 0) milliseconds = (int64_t)field.value;
  }
  if (store == NULL || cursor != end || key.data == NULL)
    return error_make(PJRT_Error_Code_FAILED_PRECONDITION, "the framework gave no key-value store to the client");
  char message[PJRT_DRIVER_MESSAGE_SIZE] = "", *found = NULL;
  size_t size = 0;
  int code = value.data ? store->put(store->arg, key.data, key.size, value.data, value.size, message)
                        : store->get(store->arg, key.data, key.size, milliseconds, &found, &size, message);
  if (!code && found) bytes_add(results, found, size);
  free(found);
  return error_from_parts((PJRT_Error_Code)code, message, strlen(message));
}

struct reply {
  questions *to; /* a reference */
  uint64_t number;
};

/* Where the process is gone, nobody waits any more. */
void reply_send(reply *owned, PJRT_Error *error, const bytes *data) {
  bytes message = {0};
  if (error) {
    const char *text;
    size_t text_size;
    pjrt_error_read(error, &text, &text_size);
    proto_varint(&message, 1, (uint64_t)pjrt_error_code(error));
    proto_bytes(&message, 2, text, text_size);
    pjrt_error_release(error);
  }
  if (data) proto_bytes(&message, 3, data->data, data->size);
  proto_varint(&message, 4, owned->number);
  pthread_mutex_lock(&owned->to->writes);
  send_message(owned->to->socket, &message);
  pthread_mutex_unlock(&owned->to->writes);
  free(message.data);
  questions_unref(owned->to);
  free(owned);
}

static void answer_question(questions *each, const char *question, size_t size) {
  const char *cursor = question;
  proto_field field, of_store = {0}, transfer = {0}, partitioned = {0};
  reply *answer = new_zeroed(1, sizeof *answer);
  atomic_fetch_add(&each->refs, 1);
  answer->to = each;
  while (proto_next(&cursor, question + size, &field)) {
    if (field.number == 5 && field.wire == 0) answer->number = field.value;
    if (field.number == 6 && field.wire == 2) of_store = field;
    if (field.number == 7 && field.wire == 2) transfer = field;
    if (field.number == 8 && field.wire == 2) partitioned = field;
  }
  if (transfer.data) {
    execute_options_call(&transfer, answer);
    return;
  }
  bytes results = {0};
  PJRT_Error *error;
  if (partitioned.data) {
    answering = each->of;
    error = partitioner_call(partitioned.data, partitioned.size, &results);
    answering = NULL;
  } else {
    error = of_store.data ? ask_store(each->store, &of_store, &results) : ffi_call(question, size, &results);
  }
  reply_send(answer, error, &results);
  free(results.data);
}

static bool start_thread(void *(*function)(void *), questions *each) {
  pthread_t thread;
  atomic_fetch_add(&each->refs, 1);
  bool starts = pthread_create(&thread, NULL, function, each) == 0;
  if (starts) pthread_detach(thread);
  else questions_unref(each);
  return starts;
}

/* One thread reads; each has a handler called, and there is always another one that reads meanwhile. */
static void *serve_questions(void *arg) {
  questions *each = arg;
  bool is_open = true;
  while (is_open) {
    char *question = NULL;
    size_t size;
    if (atomic_fetch_add(&each->idle, 1) > 1) is_open = false; /* two have nothing to do already */
    if (is_open) {
      pthread_mutex_lock(&each->reads);
      is_open = receive_message(each->socket, &question, &size);
      pthread_mutex_unlock(&each->reads);
    }
    if (atomic_fetch_sub(&each->idle, 1) == 1 && is_open) start_thread(serve_questions, each);
    if (is_open) answer_question(each, question, size);
    free(question);
  }
  questions_unref(each);
  return NULL;
}

/* Where no thread can be made, the process waits for its answers until it ends. */
static questions *answer_questions(int socket, const process *of, const pjrt_driver_store *store) {
  questions *each = new_zeroed(1, sizeof *each);
  each->socket = socket;
  each->of = of;
  each->store = store;
  atomic_init(&each->refs, 1);
  pthread_mutex_init(&each->reads, NULL);
  pthread_mutex_init(&each->writes, NULL);
  start_thread(serve_questions, each);
  return each;
}

/* A handler may still run, on a thread of its own. */
void questions_end(questions *owned) {
  if (owned) shutdown(owned->socket, SHUT_RDWR);
  questions_unref(owned);
}

static void stop_answering(process *each) {
  questions_end(each->questions);
  each->questions = NULL;
}

/* ---- its life --------------------------------------------------------------------------------------------------------------*/
/* Waits until the process has ended. One that does not end by itself, because it computes or was stopped, is killed. */
static void wait_for_end(process *each, int *status) {
  struct pollfd end = {.fd = each->end, .events = POLLIN};
  bool is_late = each->end < 0 || poll(&end, 1, PATIENCE_MS) == 0;
  if (is_late) kill(each->pid, SIGKILL);
  while (waitpid(each->pid, status, 0) < 0 && errno == EINTR) {
  }
}

/* Children that others used when this process no longer did leave nothing behind when they end. */
static void leave_child(pid_t pid) {
  pthread_mutex_lock(&all_mutex);
  for (size_t i = 0; i < LEFT; ++i) {
    if (left[i] && waitpid(left[i], NULL, WNOHANG) != 0) left[i] = 0;
    if (left[i] == 0) left[i] = pid, pid = 0;
  }
  pthread_mutex_unlock(&all_mutex);
}

/* A process that serves others may go on. Until it has let go of what it has of this one, it keeps the socket open. */
static void leave(process *each, int socket, bool is_lost, int *status) {
  struct pollfd hears = {.fd = socket, .events = POLLIN}, end = {.fd = each->end, .events = POLLIN};
  char nothing[64];
  if (each->end < 0 && each->pid) end.fd = each->end = (int)syscall(SYS_pidfd_open, each->pid, 0);
  while (socket >= 0 && poll(&hears, 1, PATIENCE_MS) == 1 && recv(socket, nothing, sizeof nothing, 0) > 0) {
  }
  bool has_ended = each->end >= 0 && poll(&end, 1, is_lost ? PATIENCE_MS / 4 : 0) == 1;
  if (has_ended) snprintf(each->ending, sizeof each->ending, "it has ended");
  else if (is_lost) snprintf(each->ending, sizeof each->ending, "it closed the connection");
  if (each->pid == 0 || (has_ended && waitpid(each->pid, status, WNOHANG) == each->pid)) return;
  *status = -1;
  leave_child(each->pid);
}

/* Closes the socket, which ends the process; writes how it ended. */
static void stop(process *each, bool is_lost) {
  int socket = each->socket, status = -1;
  each->socket = -1;
  /* A process that was forked just now has it, too. */
  if (socket >= 0) shutdown(socket, each->serves_others ? SHUT_WR : SHUT_RDWR);
  snprintf(each->ending, sizeof each->ending, "no reason is known");
  if (each->owner == getpid()) {
    if (each->serves_others) leave(each, socket, is_lost, &status);
    else wait_for_end(each, &status);
    if (status != -1 && WIFEXITED(status))
      snprintf(each->ending, sizeof each->ending, "it ended with exit status %d", WEXITSTATUS(status));
    if (status != -1 && WIFSIGNALED(status))
      snprintf(each->ending, sizeof each->ending, "signal %d ended it", WTERMSIG(status));
  }
  if (socket >= 0) close(socket);
  each->pid = each->owner = 0;
}

/* Without the mutex: somebody may hold it who waits for an answer. */
void process_signal(process *each, int signal) {
  if (each->end >= 0 && each->owner == getpid()) syscall(SYS_pidfd_send_signal, each->end, signal, NULL, 0);
}

void process_kill(process *each) {
  if (each->end < 0 || each->owner != getpid()) return;
  if (each->serves_others) shutdown(each->line, SHUT_RDWR);
  else process_signal(each, SIGKILL);
}

void process_close(process *each) {
  pthread_mutex_lock(&each->mutex);
  stop(each, false);
  pthread_mutex_unlock(&each->mutex);
}

void process_free(process *each) {
  if (each == NULL) return;
  pthread_mutex_lock(&all_mutex);
  process **place = &all;
  while (*place != each) place = &(*place)->next;
  *place = each->next;
  pthread_mutex_unlock(&all_mutex);
  stop(each, false);
  if (each->end >= 0) close(each->end);
  if (each->line >= 0) close(each->line);
  stop_answering(each);
  printout_unref(each->printout);
  pthread_mutex_destroy(&each->mutex);
  free(each);
}

/* Starts it with the socket as its standard input and where it prints; one of its own inherits the other files, too. */
static PJRT_Error *spawn(process *each, const char *python, int input, int asks, int prints) {
  const char *spec = setting("compiler"), *folder = setting("path");
  char *arguments[] = {(char *)python, "-P", "-m", (char *)each->module, (char *)spec, (char *)(folder ? folder : ""),
                       NULL};
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  /* What others use does not end with the terminal of this process. */
  if (each->serves_others) posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);
  posix_spawn_file_actions_adddup2(&actions, input, 0);
  if (each->shared >= 0 && !each->serves_others) posix_spawn_file_actions_adddup2(&actions, each->shared, 3);
  if (asks >= 0 && !each->serves_others) posix_spawn_file_actions_adddup2(&actions, asks, 4);
  if (prints >= 0) posix_spawn_file_actions_adddup2(&actions, prints, 2);
  posix_spawn_file_actions_adddup2(&actions, 2, 1);
  int failed, attempts = 0;
  /* Another thread may move the variables of the environment meanwhile. */
  do failed = posix_spawnp(&each->pid, python, &actions, &attributes, arguments, environ);
  while (failed == EFAULT && ++attempts < 10);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (!failed) return NULL;
  each->pid = 0;
  return error_make(PJRT_Error_Code_UNAVAILABLE,
                    "the process that %s could not be started: %s: %s; name a Python that has pjrt and the device in "
                    "PJRT_WORKER_PYTHON", each->does, python, strerror(failed));
}

static void has_begun(process *each, int socket, int end) {
  each->owner = getpid();
  each->socket = socket;
  if (each->end >= 0) close(each->end);
  each->end = end;
}

/* With numbers from 5 on, because the process gets other files under the lower ones. */
static bool make_sockets(int *ends) {
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return false;
  int theirs = fcntl(ends[1], F_DUPFD_CLOEXEC, 5);
  close(ends[1]);
  ends[1] = theirs;
  if (theirs < 0) close(ends[0]);
  return theirs >= 0;
}

questions *questions_begin(const pjrt_driver_store *store, int *theirs) {
  int ends[2];
  if (!make_sockets(ends)) return NULL;
  *theirs = ends[1];
  return answer_questions(ends[0], NULL, store);
}

static PJRT_Error *start_own(process *each, const char *python, int asks, int prints) {
  int ends[2];
  if (!make_sockets(ends))
    return error_make(PJRT_Error_Code_UNAVAILABLE, "no socket to the process that %s: %s", each->does, strerror(errno));
  PJRT_Error *error = spawn(each, python, ends[1], asks, prints);
  close(ends[1]);
  if (error) close(ends[0]);
  else has_begun(each, ends[0], (int)syscall(SYS_pidfd_open, each->pid, 0));
  return error;
}

/* ---- a process that others use, too ---------------------------------------------------------------------------------------*/
/* Its name is in no folder: the system forgets it with the socket. */
static socklen_t name_of(struct sockaddr_un *out, const char *python) {
  const char *parts[] = {python, setting("compiler"), setting("path")};
  uint64_t hash = UINT64_C(14695981039346656037); /* FNV-1a */
  for (size_t i = 0; i < 3; ++i) {
    const char *part = parts[i] ? parts[i] : "";
    for (size_t j = 0; j <= strlen(part); ++j) hash = (hash ^ (unsigned char)part[j]) * UINT64_C(1099511628211);
  }
  *out = (struct sockaddr_un){.sun_family = AF_UNIX};
  int size = snprintf(out->sun_path + 1, sizeof out->sun_path - 1, "pjrt-%u-%016llx", (unsigned)geteuid(),
                      (unsigned long long)hash);
  return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)size);
}

/* Whoever comes first has the name: another user may. */
static bool is_of_this_user(int socket) {
  struct ucred peer;
  socklen_t size = sizeof peer;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

/* Files beside a byte; returns one that came, or -1. */
static bool send_files(int socket, const int *files, size_t count) {
  union { struct cmsghdr head; char room[CMSG_SPACE(3 * sizeof(int))]; } control = {0};
  char byte = 0;
  struct iovec text = {.iov_base = &byte, .iov_len = 1};
  struct msghdr message = {.msg_iov = &text, .msg_iovlen = 1, .msg_control = &control,
                           .msg_controllen = CMSG_SPACE(count * sizeof *files)};
  struct cmsghdr *head = CMSG_FIRSTHDR(&message);
  *head = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(count * sizeof *files)};
  memcpy(CMSG_DATA(head), files, count * sizeof *files);
  return sendmsg(socket, &message, MSG_NOSIGNAL) == 1;
}

static int receive_file(int socket) {
  union { struct cmsghdr head; char room[CMSG_SPACE(sizeof(int))]; } control;
  char byte;
  int file = -1;
  struct iovec text = {.iov_base = &byte, .iov_len = 1};
  struct msghdr message = {.msg_iov = &text, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
  ssize_t got;
  while ((got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC)) < 0 && errno == EINTR) {
  }
  const struct cmsghdr *head = got == 1 ? CMSG_FIRSTHDR(&message) : NULL;
  if (head && head->cmsg_type == SCM_RIGHTS && head->cmsg_len == CMSG_LEN(sizeof file))
    memcpy(&file, CMSG_DATA(head), sizeof file);
  return file;
}

/* Has one started, unless another process of the user does so at this moment. */
static PJRT_Error *start_shared(process *each, const char *python, const struct sockaddr_un *name, socklen_t size,
                                int prints) {
  int listening = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  PJRT_Error *error = NULL;
  if (listening >= 0 && bind(listening, (const struct sockaddr *)name, size) == 0 && listen(listening, SOMAXCONN) == 0)
    error = spawn(each, python, listening, -1, prints);
  else
    usleep(1000);
  if (listening >= 0) close(listening);
  return error;
}

/* Meets the process that has the name, or starts it. It answers when it has been imported: see `greet`. */
static PJRT_Error *meet(process *each, const char *python, int asks, int prints) {
  struct sockaddr_un name;
  socklen_t size = name_of(&name, python);
  const int files[] = {each->shared, asks, prints};
  PJRT_Error *error = NULL;
  for (int attempt = 0; attempt < ATTEMPTS && !error; ++attempt) {
    int line = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (line >= 0 && connect(line, (const struct sockaddr *)&name, size) == 0) {
      if (!is_of_this_user(line))
        error = error_make(PJRT_Error_Code_PERMISSION_DENIED,
                           "expected a process of this user to have the name %s, by which processes share the device, "
                           "found one of another user; export the device without --shared", name.sun_path + 1);
      else
        send_files(line, files, prints < 0 ? 2 : 3); /* where that fails, nobody greets */
    } else if (each->pid == 0) {
      error = start_shared(each, python, &name, size, prints);
      if (line >= 0) close(line);
      continue;
    } /* else it has ended at once */
    if (error == NULL && line >= 0) {
      has_begun(each, line, -1);
      each->line = fcntl(line, F_DUPFD_CLOEXEC, 0);
      return NULL;
    }
    if (line >= 0) close(line);
  }
  return error ? error : error_make(PJRT_Error_Code_UNAVAILABLE, "no process that %s could be met: %s", each->does,
                                    strerror(errno));
}

/* Waits for the file that says when it has ended; false where it has already, perhaps because it served nobody else. */
static bool greet(process *each) { return (each->end = receive_file(each->socket)) >= 0; }

static char framework_python[4096]; /* guarded by all_mutex */

/* Names the Python of the framework's own environment, for a library that states none: one in a wheel. */
__attribute__((visibility("default"))) void pjrt_native_python(const char *path) {
  pthread_mutex_lock(&all_mutex);
  snprintf(framework_python, sizeof framework_python, "%s", path);
  pthread_mutex_unlock(&all_mutex);
}

static PJRT_Error *start(process *each) {
  if (setting("compiler") == NULL)
    return error_make(PJRT_Error_Code_UNIMPLEMENTED,
                      "this library has no compiler, nor another process that %s: it only runs executables that were "
                      "serialized, and are code of the driver alone", each->does);
  const char *python = getenv("PJRT_WORKER_PYTHON");
  if (python == NULL || *python == 0) python = setting("python");
  if (python == NULL) python = *framework_python ? framework_python : "python3";
  int asks[2] = {-1, -1}, prints = -1;
  if (each->asks && !make_sockets(asks))
    return error_make(PJRT_Error_Code_UNAVAILABLE, "no socket to the process that %s: %s", each->does, strerror(errno));
  printout_unref(each->printout);
  const char *label = setting("label");
  each->printout = printout_make(label ? label : "", &prints);
  PJRT_Error *error = each->serves_others ? meet(each, python, asks[1], prints)
                                          : start_own(each, python, asks[1], prints);
  if (prints >= 0) close(prints);
  if (asks[1] >= 0) close(asks[1]);
  if (error) {
    if (asks[0] >= 0) close(asks[0]);
    return error;
  }
  stop_answering(each); /* of the process before */
  each->names = each->partitioners = 0;
  if (each->asks) each->questions = answer_questions(asks[0], each, each->store);
  return NULL;
}

static PJRT_Error *ended(const process *each) {
  char *last = printout_last(each->printout);
  PJRT_Error *error = error_make(
      PJRT_Error_Code_UNAVAILABLE, "the process that %s gave no answer, %s; %s%s%s", each->does, each->ending,
      each->starts_again ? "the next program starts a new one" : "a new client starts a new one",
      last ? "; it wrote last:\n" : each->serves_others ? "" : "; it wrote nothing", last ? last : "");
  free(last);
  return error;
}

PJRT_Error *process_start(process *each) {
  for (int attempt = 0;; ++attempt) {
    pthread_mutex_lock(&all_mutex);
    PJRT_Error *error = each->owner == getpid() ? NULL : start(each);
    pthread_mutex_unlock(&all_mutex);
    if (error || !each->serves_others || greet(each)) return error;
    bool is_child = each->pid != 0;
    pthread_mutex_lock(&each->mutex);
    stop(each, true);
    if (is_child || attempt == ATTEMPTS) error = ended(each);
    close(each->line);
    each->line = -1;
    pthread_mutex_unlock(&each->mutex);
    if (error) return error;
  }
}

PJRT_Error *process_wait(process *each) {
  struct pollfd end = {.fd = each->end, .events = POLLIN};
  if (each->serves_others) end = (struct pollfd){.fd = each->line, .events = POLLRDHUP};
  while (poll(&end, 1, -1) < 0 && errno == EINTR) {
  }
  pthread_mutex_lock(&each->mutex);
  if (each->owner) stop(each, true);
  PJRT_Error *error = ended(each);
  pthread_mutex_unlock(&each->mutex);
  return error;
}

PJRT_Error *answer_read(answer *out) {
  const char *cursor = out->text, *end = out->text + out->size, *message = "";
  size_t message_size = 0;
  uint64_t code = 0;
  proto_field field;
  while (proto_next(&cursor, end, &field)) {
    if (field.number == 1 && field.wire == 0) code = field.value;
    if (field.number == 2 && field.wire == 2) message = field.data, message_size = field.size;
    if (field.number == 3 && field.wire == 2) out->data = field.data, out->data_size = field.size;
    if (field.number == 4 && field.wire == 0) out->number = field.value;
  }
  if (cursor != end || code > PJRT_Error_Code_UNAUTHENTICATED)
    return error_make(PJRT_Error_Code_INTERNAL, "a process of ours gave an answer that cannot be read");
  return code ? pjrt_error_new((PJRT_Error_Code)code, message, message_size) : NULL;
}

static void add_option(bytes *request, const pjrt_driver_option *option) {
  bytes inner = {0};
  proto_bytes(&inner, 1, option->name, strlen(option->name));
  if (option->text) proto_bytes(&inner, 2, option->text, strlen(option->text));
  else proto_varint(&inner, option->is_boolean ? 4 : 3, (uint64_t)option->number);
  proto_bytes(request, 7, inner.data, inner.size);
  free(inner.data);
}

void request_open(bytes *request, const pjrt_driver_option *options, size_t num_options, bool has_store) {
  proto_bytes(request, 1, "open", 4);
  proto_varint(request, 5, has_store);
  for (size_t i = 0; i < num_options; ++i) add_option(request, &options[i]);
}

int ask_to_load(ask_function ask, pjrt_driver *driver, size_t device, const void *code, size_t size, uint64_t *executable,
                char *message) {
  bytes request = {0};
  proto_bytes(&request, 1, "load", 4);
  proto_varint(&request, 5, device);
  proto_bytes(&request, 6, code, size);
  answer given;
  PJRT_Error *error = ask(driver, &request, &given);
  free(request.data);
  if (error) return error_give(error, message);
  *executable = given.number;
  answer_free(&given);
  return 0;
}

PJRT_Error *process_ask(process *each, bytes *request, answer *out) {
  PJRT_Error *error = NULL;
  *out = (answer){0};
  if (answering == each) /* it compiles, and would take this up behind that */
    return error_make(PJRT_Error_Code_FAILED_PRECONDITION,
                      "expected a function that says how a custom call is divided to compile nothing for the device that "
                      "compiles the call, found a program; compute with numpy, or on another device");
  pthread_mutex_lock(&each->mutex);
  if (each->owner != getpid()) error = each->starts_again ? process_start(each) : ended(each);
  if (!error && each->questions) {
    each->names = ffi_add_names(request, 8, each->names);
    each->partitioners = partitioner_add_names(request, 11, each->partitioners);
  }
  if (!error && !(send_message(each->socket, request) && receive_message(each->socket, &out->text, &out->size))) {
    stop(each, true);
    error = ended(each);
  }
  pthread_mutex_unlock(&each->mutex);
  if (!error) error = answer_read(out);
  if (error) answer_free(out);
  return error;
}

void answer_free(answer *each) {
  free(each->text);
  *each = (answer){0};
}
