/* The start of the program, and what the cases share. */
#include "program.h"

const PJRT_Api *api, *plugin;
PJRT_Api changed;
void (*hold)(bool on);
const char *layers_path, *plugin_path, *layer_options;

static const PJRT_Api *(*wrap_table)(const PJRT_Api *, const char *, const char *, const char *, char *, size_t);

void fail_at(const char *file, int line, const char *what) {
  fprintf(stderr, "%s:%d: %s\n", file, line, what);
  exit(3);
}

static void *find(const char *path, const char *name) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  void *symbol = library != NULL ? dlsym(library, name) : NULL;
  if (symbol == NULL) fail_at(__FILE__, __LINE__, dlerror());
  return symbol;
}

static const PJRT_Api *wrap_one(const PJRT_Api *table, const char *name) {
  char problem[1024] = "", options[2048];
  snprintf(options, sizeof options, "validate=%s", layer_options);
  const PJRT_Api *wrapped = wrap_table(table, name, "validate", options, problem, sizeof problem);
  if (wrapped == NULL) fail_at(__FILE__, __LINE__, problem);
  return wrapped;
}

void wrap(void) { api = wrap_one(&changed, "tiny"); }

const PJRT_Api *wrap_another(void) {
  static PJRT_Api copy;
  copy = *plugin;
  return wrap_one(&copy, "another");
}

/* ---- errors -------------------------------------------------------------------------------------------------------*/
static PJRT_Error_Code take(PJRT_Error *error, char *text, size_t room) {
  text[0] = 0;
  if (error == NULL) return PJRT_Error_Code_OK;
  ARGS(Error_GetCode, code, .error = error);
  EXPECT(api->PJRT_Error_GetCode(&code) == NULL);
  ARGS(Error_Message, message, .error = error);
  api->PJRT_Error_Message(&message);
  snprintf(text, room, "%.*s", (int)message.message_size, message.message);
  ARGS(Error_Destroy, destroy, .error = error);
  api->PJRT_Error_Destroy(&destroy);
  return code.code;
}

void check(PJRT_Error *error, const char *file, int line, const char *what) {
  char text[1024];
  if (take(error, text, sizeof text) == PJRT_Error_Code_OK) return;
  fprintf(stderr, "%s: %s\n", what, text);
  fail_at(file, line, what);
}

void broken(PJRT_Error *error) {
  char text[1024];
  const PJRT_Error_Code code = take(error, text, sizeof text);
  printf("result %d %s\n", (int)code, text);
  fflush(stdout);
}

/* ---- objects ------------------------------------------------------------------------------------------------------*/
PJRT_Client *make_client(void) {
  PJRT_NamedValue option = {.struct_size = PJRT_NamedValue_STRUCT_SIZE, .name = "num_devices", .name_size = 11,
                            .type = PJRT_NamedValue_kInt64, .int64_value = 2, .value_size = 1};
  CALL(Client_Create, create, .create_options = &option, .num_options = 1);
  return create.client;
}

void destroy_client(PJRT_Client *client) { CALL(Client_Destroy, destroy, .client = client); }

PJRT_Device *device_of(PJRT_Client *client, int id) {
  CALL(Client_LookupDevice, lookup, .client = client, .id = id);
  return lookup.device;
}

PJRT_Memory *memory_of(PJRT_Device *device) {
  CALL(Device_DefaultMemory, memory, .device = device);
  return memory.memory;
}

PJRT_Buffer *make_buffer(PJRT_Client *client) {
  static const float data[] = {1, 2, 3, 4};
  const int64_t dims[] = {4};
  CALL(Client_BufferFromHostBuffer, put, .client = client, .data = data, .type = PJRT_Buffer_Type_F32, .dims = dims,
       .num_dims = 1, .host_buffer_semantics = PJRT_HostBufferSemantics_kImmutableOnlyDuringCall,
       .device = device_of(client, 0));
  CALL(Event_Await, await, .event = put.done_with_host_buffer);
  destroy_event(put.done_with_host_buffer);
  return put.buffer;
}

void destroy_buffer(PJRT_Buffer *buffer) { CALL(Buffer_Destroy, destroy, .buffer = buffer); }

void destroy_event(PJRT_Event *event) { CALL(Event_Destroy, destroy, .event = event); }

void await_buffer(PJRT_Buffer *buffer) {
  CALL(Buffer_ReadyEvent, ready, .buffer = buffer);
  CALL(Event_Await, await, .event = ready.event);
  destroy_event(ready.event);
}

PJRT_Event *set_event(void) {
  CALL(Event_Create, create);
  CALL(Event_Set, set, .event = create.event);
  return create.event;
}

PJRT_LoadedExecutable *compile(PJRT_Client *client, const char *text) {
  PJRT_Program program = {.struct_size = PJRT_Program_STRUCT_SIZE, .code = (char *)text, .code_size = strlen(text),
                          .format = "tiny", .format_size = 4};
  CALL(Client_Compile, compile, .client = client, .program = &program);
  return compile.executable;
}

void destroy_loaded(PJRT_LoadedExecutable *loaded) {
  CALL(LoadedExecutable_Destroy, destroy, .executable = loaded);
}

PJRT_Executable *executable_of(PJRT_LoadedExecutable *loaded) {
  CALL(LoadedExecutable_GetExecutable, get, .loaded_executable = loaded);
  return get.executable;
}

PJRT_Error *execute(PJRT_LoadedExecutable *loaded, PJRT_Buffer *const *arguments, size_t number,
                    PJRT_Buffer **outputs) {
  PJRT_ExecuteOptions options = {.struct_size = PJRT_ExecuteOptions_STRUCT_SIZE};
  ARGS(LoadedExecutable_Execute, call, .executable = loaded, .options = &options, .argument_lists = &arguments,
       .num_devices = 1, .num_args = number, .output_lists = &outputs);
  return api->PJRT_LoadedExecutable_Execute(&call);
}

/* ---- the start ----------------------------------------------------------------------------------------------------*/
static const rule_case *const lists[] = {handle_cases, struct_cases, execution_cases,
                                         event_cases,  memory_cases, plugin_cases, sound_cases};

static const rule_case *find_case(const char *rule) {
  for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
    for (const rule_case *each = lists[i]; each->rule != NULL; each++) {
      if (strcmp(each->rule, rule) == 0) return each;
    }
  }
  return NULL;
}

int main(int number, char **words) {
  EXPECT(number == 5);
  layers_path = words[1];
  plugin_path = words[2];
  layer_options = words[3];
  const rule_case *chosen = find_case(words[4]);
  EXPECT(chosen != NULL);
  *(void **)&wrap_table = find(layers_path, "pjrt_layer_wrap");
  *(void **)&hold = find(plugin_path, "tiny_plugin_hold");
  const PJRT_Api *(*get)(void);
  *(void **)&get = find(plugin_path, "GetPjrtApi");
  plugin = get();
  changed = *plugin;
  if (!chosen->changes) wrap();
  chosen->run();
  return 0;
}
