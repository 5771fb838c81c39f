/* The tiny plugin with one function that does something to the process: what the variable UNRULY names.
 *
 * The library opens the tiny plugin (TINY_LIBRARY), copies its table, and puts a function of its own before
 * PJRT_Client_LookupDevice. Faults that begin with "load" happen while the library is loaded. */
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "pjrt_abi.h"

static PJRT_Api table;
static PJRT_Error *(*lookup)(PJRT_Client_LookupDevice_Args *);

static int is(const char *fault) {
  const char *name = getenv("UNRULY");
  return name != NULL && strcmp(name, fault) == 0;
}

static void *for_ever(void *unused) {
  for (;;) pause();
  return unused;
}

static void start_threads(void) {
  for (int i = 0; i < 8; ++i) {
    pthread_t thread;
    pthread_create(&thread, NULL, for_ever, NULL);
  }
}

static PJRT_Error *unruly_lookup(PJRT_Client_LookupDevice_Args *args) {
  if (is("crash")) raise(SIGSEGV);
  if (is("abort")) {
    fprintf(stderr, "Check failed: the device table is broken\n");
    abort();
  }
  if (is("hang")) for_ever(NULL);
  if (is("exit")) exit(0);
  if (is("print")) {
    printf("a line of the plugin\n");
    fprintf(stderr, "a warning of the plugin\n");
  }
  if (is("signals"))
    for (int i = 1; i < 32; ++i) signal(i, SIG_IGN);
  if (is("threads")) start_threads();
  if (is("children") && fork() == 0) {
    setsid();  /* a process that leaves its session is not ended with the check */
    alarm(60); /* so it ends by itself */
    for_ever(NULL);
  }
  if (is("files"))
    for (int i = 0; i < 1024; ++i) close(i);
  if (is("stop")) raise(SIGSTOP);
  if (is("wrong answer") && args->id < 0) args->id = 0;
  return lookup(args);
}

static PJRT_Error *(*to_host)(PJRT_Buffer_ToHostBuffer_Args *);

static PJRT_Error *wrong_to_host(PJRT_Buffer_ToHostBuffer_Args *args) {
  PJRT_Error *error = to_host(args);
  if (error == NULL && args->dst != NULL) {
    PJRT_Event_Await_Args await = {.struct_size = PJRT_Event_Await_Args_STRUCT_SIZE, .event = args->event};
    table.PJRT_Event_Await(&await);
    *(char *)args->dst ^= 1;
  }
  return error;
}

__attribute__((constructor)) static void loaded(void) {
  if (is("load crash")) raise(SIGSEGV);
  if (is("load hang")) for_ever(NULL);
  if (is("load exit")) exit(3);
}

static PJRT_Error *never(PJRT_Plugin_Initialize_Args *args) {
  (void)args;
  for_ever(NULL);
  return NULL;
}

__attribute__((visibility("default"))) const PJRT_Api *GetPjrtApi(void) {
  void *library = dlopen(TINY_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) return NULL;
  const PJRT_Api *(*get)(void) = (const PJRT_Api *(*)(void))dlsym(library, "GetPjrtApi");
  memcpy(&table, get(), sizeof table);
  lookup = table.PJRT_Client_LookupDevice;
  table.PJRT_Client_LookupDevice = unruly_lookup;
  to_host = table.PJRT_Buffer_ToHostBuffer;
  if (is("wrong data")) table.PJRT_Buffer_ToHostBuffer = wrong_to_host;
  if (is("initialize hang")) table.PJRT_Plugin_Initialize = never;
  return &table;
}
