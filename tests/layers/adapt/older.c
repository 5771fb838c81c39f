/* A plugin that is older, stricter or less complete than the one behind it, as the environment says:
 *
 *   OLDER_TARGET   the library of the plugin behind it
 *   OLDER_MINOR    the minor version that its table states
 *   OLDER_SIZE     the size of its table; behind it lies what crashes whoever calls it
 *   OLDER_NULLS    offsets of functions that are null in the table, separated by commas
 *   OLDER_STUBS    offsets of functions that only say that they are not implemented
 *   OLDER_OPTIONS  the only size of PJRT_ExecuteOptions that it takes; -N: at least N bytes
 *   OLDER_CREATE   the same of the arguments of PJRT_Client_Create */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pjrt_abi.h"

static const PJRT_Api *target;
static PJRT_Api *table;

/* An error of this plugin: of a stub, or with a text of its own. */
typedef struct own_error {
  PJRT_Error base;
  PJRT_Error_Code code;
  char text[128];
} own_error;

static own_error own;

static PJRT_Error *fail(PJRT_Error_Code code, const char *text) {
  own.code = code;
  snprintf(own.text, sizeof own.text, "%s", text);
  return &own.base;
}

static void error_destroy(PJRT_Error_Destroy_Args *args) {
  if (args->error != &own.base) target->PJRT_Error_Destroy(args);
}

static void error_message(PJRT_Error_Message_Args *args) {
  if (args->error != &own.base) {
    target->PJRT_Error_Message(args);
    return;
  }
  args->message = own.text;
  args->message_size = strlen(own.text);
}

static PJRT_Error *error_code(PJRT_Error_GetCode_Args *args) {
  if (args->error != &own.base) return target->PJRT_Error_GetCode(args);
  args->code = own.code;
  return NULL;
}

static PJRT_Error *error_payloads(PJRT_Error_ForEachPayload_Args *args) {
  return args->error != &own.base ? target->PJRT_Error_ForEachPayload(args) : NULL;
}

static PJRT_Error *stub(void *args) {
  (void)args;
  return fail(PJRT_Error_Code_UNIMPLEMENTED, "this function is a stub");
}

static int number(const char *name) {
  const char *text = getenv(name);
  return text != NULL ? atoi(text) : 0;
}

static PJRT_Error *check_size(const char *name, const char *limit, size_t size) {
  const int wanted = number(limit);
  char text[128];
  if (wanted == 0 || (wanted > 0 ? size == (size_t)wanted : size >= (size_t)-wanted)) return NULL;
  snprintf(text, sizeof text, "Unexpected %s size: expected %d, got %zu", name, abs(wanted), size);
  return fail(PJRT_Error_Code_INVALID_ARGUMENT, text);
}

static PJRT_Error *client_create(PJRT_Client_Create_Args *args) {
  PJRT_Error *error = check_size("PJRT_Client_Create_Args", "OLDER_CREATE", args->struct_size);
  return error != NULL ? error : target->PJRT_Client_Create(args);
}

static PJRT_Error *execute(PJRT_LoadedExecutable_Execute_Args *args) {
  PJRT_Error *error = check_size("PJRT_ExecuteOptions", "OLDER_OPTIONS", args->options->struct_size);
  return error != NULL ? error : target->PJRT_LoadedExecutable_Execute(args);
}

static void put(const char *name, const void *function) {
  const char *text = getenv(name);
  while (text != NULL && *text) {
    char *end;
    const long offset = strtol(text, &end, 10);
    memcpy((char *)table + offset, &function, sizeof function);
    text = *end == ',' ? end + 1 : end;
  }
}

__attribute__((visibility("default"))) const PJRT_Api *GetPjrtApi(void) {
  if (table != NULL) return table;
  void *library = dlopen(getenv("OLDER_TARGET"), RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    return NULL;
  }
  const PJRT_Api *(*get)(void);
  void *symbol = dlsym(library, "GetPjrtApi"), *entry;
  memcpy(&get, &symbol, sizeof get);
  target = get();
  const size_t size = number("OLDER_SIZE") > 0 ? (size_t)number("OLDER_SIZE") : target->struct_size;
  PJRT_Api *copy = malloc(sizeof *copy + size);
  memset(copy, 0xab, sizeof *copy + size);
  memcpy(copy, target, size);
  table = copy;
  table->struct_size = size;
  if (number("OLDER_MINOR") > 0) table->pjrt_api_version.minor_version = number("OLDER_MINOR");
  table->PJRT_Error_Destroy = error_destroy;
  table->PJRT_Error_Message = error_message;
  table->PJRT_Error_GetCode = error_code;
  if (size > offsetof(PJRT_Api, PJRT_Error_ForEachPayload)) table->PJRT_Error_ForEachPayload = error_payloads;
  table->PJRT_Client_Create = client_create;
  table->PJRT_LoadedExecutable_Execute = execute;
  PJRT_Error *(*function)(void *) = stub;
  memcpy(&entry, &function, sizeof entry);
  put("OLDER_STUBS", entry);
  put("OLDER_NULLS", NULL);
  return table;
}
