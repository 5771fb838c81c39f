/* A program that breaks one rule of the validate layer, as a framework in C would, or as a plugin would.
 *
 *   break_rules LAYERS PLUGIN OPTIONS CASE
 *
 * LAYERS is the library with the layers, PLUGIN the tiny plugin, OPTIONS those of the layer. Nothing is linked. Each case
 * breaks the rule of its name, and nothing else. It prints "result CODE MESSAGE" for the call that breaks it, and ends
 * with 0. */
#ifndef PROGRAM_H_
#define PROGRAM_H_

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pjrt_abi.h"
#include "pjrt_abi/extensions.h"

extern const PJRT_Api *api;       /* the wrapped table */
extern const PJRT_Api *plugin;    /* the plugin's own */
extern PJRT_Api changed;          /* a copy of the plugin's, which a case may change before it is wrapped */
extern void (*hold)(bool on);     /* while held, the plugin takes up no work */
extern const char *layers_path, *plugin_path, *layer_options;

/* Wraps the changed table; the other cases find it wrapped. */
void wrap(void);
/* Wraps another copy of the plugin. */
const PJRT_Api *wrap_another(void);

void fail_at(const char *file, int line, const char *what);
#define EXPECT(condition)                                    \
  do {                                                       \
    if (!(condition)) fail_at(__FILE__, __LINE__, #condition); \
  } while (0)

/* Fails if there is an error. */
void check(PJRT_Error *error, const char *file, int line, const char *what);
/* Prints the result of the call that breaks the rule, and destroys the error. */
void broken(PJRT_Error *error);

#define ARGS(name, variable, ...) \
  PJRT_##name##_Args variable = {.struct_size = PJRT_##name##_Args_STRUCT_SIZE, __VA_ARGS__}
/* CALL(Client_Devices, d, .client = client): declares d, calls, and expects success. */
#define CALL(name, variable, ...)      \
  ARGS(name, variable, __VA_ARGS__);   \
  check(api->PJRT_##name(&variable), __FILE__, __LINE__, #name)
/* BREAK(Buffer_Device, d, .buffer = buffer): the call that breaks the rule. */
#define BREAK(name, variable, ...)     \
  ARGS(name, variable, __VA_ARGS__);   \
  broken(api->PJRT_##name(&variable))

PJRT_Client *make_client(void);
void destroy_client(PJRT_Client *client);
PJRT_Device *device_of(PJRT_Client *client, int id);
PJRT_Memory *memory_of(PJRT_Device *device);
/* Four floats; its event is awaited and destroyed. */
PJRT_Buffer *make_buffer(PJRT_Client *client);
void destroy_buffer(PJRT_Buffer *buffer);
void destroy_event(PJRT_Event *event);
void await_buffer(PJRT_Buffer *buffer);
PJRT_Event *set_event(void); /* an event of the caller, ready */
PJRT_LoadedExecutable *compile(PJRT_Client *client, const char *text);
void destroy_loaded(PJRT_LoadedExecutable *loaded);
PJRT_Executable *executable_of(PJRT_LoadedExecutable *loaded);
PJRT_Error *execute(PJRT_LoadedExecutable *loaded, PJRT_Buffer *const *arguments, size_t number, PJRT_Buffer **outputs);

/* One of x + x, which keeps its argument, and one that takes its argument's memory. */
#define DOUBLE "tiny 1\nin x f32[4]\nlet y = add x x\nout y\n"
#define DONATE "tiny 1\nin x f32[4]\nlet y = add x x\nout y alias=x\n"
#define DONATE_OF_TWO "tiny 1\nin x f32[4]\nin z f32[4]\nlet y = add x z\nout y alias=x\n"

typedef struct rule_case {
  const char *rule;
  void (*run)(void);
  bool changes; /* the plugin's table, and so wraps it itself */
} rule_case;

extern const rule_case handle_cases[], struct_cases[], execution_cases[], event_cases[], memory_cases[], plugin_cases[],
    sound_cases[];

#endif /* PROGRAM_H_ */
