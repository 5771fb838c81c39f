/* Rules about what plugins return: the plugin's table is changed before it is wrapped. */
#include "program.h"

static PJRT_Error *success(void) { return NULL; }

/* ---- handles ------------------------------------------------------------------------------------------------------*/
static void null_result(void) {
  changed.PJRT_Client_LookupDevice = (PJRT_Error * (*)(PJRT_Client_LookupDevice_Args *)) success;
  wrap();
  PJRT_Client *client = make_client();
  BREAK(Client_LookupDevice, lookup, .client = client, .id = 0);
  destroy_client(client);
}

static PJRT_Error *devices_without_array(PJRT_Client_Devices_Args *args) {
  args->devices = NULL;
  args->num_devices = 3;
  return NULL;
}

static void null_result_array(void) {
  changed.PJRT_Client_Devices = devices_without_array;
  wrap();
  PJRT_Client *client = make_client();
  BREAK(Client_Devices, devices, .client = client);
  destroy_client(client);
}

static PJRT_Error *devices_nowhere(PJRT_Client_Devices_Args *args) {
  args->devices = (PJRT_Device *const *)(uintptr_t)0x1000;
  args->num_devices = 3;
  return NULL;
}

static void unreadable_result(void) {
  changed.PJRT_Client_Devices = devices_nowhere;
  wrap();
  PJRT_Client *client = make_client();
  BREAK(Client_Devices, devices, .client = client);
  destroy_client(client);
}

static PJRT_Error *same_event(PJRT_Event_Create_Args *args) {
  static PJRT_Event *event;
  if (event == NULL) {
    PJRT_Error *error = plugin->PJRT_Event_Create(args);
    event = args->event;
    return error;
  }
  args->event = event;
  return NULL;
}

static void returned_twice(void) {
  changed.PJRT_Event_Create = same_event;
  wrap();
  PJRT_Event *event = set_event();
  BREAK(Event_Create, again);
  CALL(Event_IsReady, is_ready, .event = event);
}

static PJRT_Error *serialize_without_deleter(PJRT_Executable_Serialize_Args *args) {
  static int object;
  args->serialized_bytes = "bytes";
  args->serialized_bytes_size = 5;
  args->serialized_executable = (PJRT_SerializedExecutable *)&object;
  args->serialized_executable_deleter = NULL;
  return NULL;
}

static void destroy_executable(PJRT_Executable *executable) {
  CALL(Executable_Destroy, destroy, .executable = executable);
}

static void missing_deleter(void) {
  changed.PJRT_Executable_Serialize = serialize_without_deleter;
  wrap();
  PJRT_Client *client = make_client();
  PJRT_LoadedExecutable *loaded = compile(client, DOUBLE);
  PJRT_Executable *executable = executable_of(loaded);
  BREAK(Executable_Serialize, serialize, .executable = executable);
  destroy_executable(executable);
  destroy_loaded(loaded);
  destroy_client(client);
}

/* ---- values -------------------------------------------------------------------------------------------------------*/
static PJRT_Error *strange_type(PJRT_Buffer_ElementType_Args *args) {
  args->type = (PJRT_Buffer_Type)1234;
  return NULL;
}

static void result_out_of_range(void) {
  changed.PJRT_Buffer_ElementType = strange_type;
  wrap();
  PJRT_Client *client = make_client();
  PJRT_Buffer *buffer = make_buffer(client);
  BREAK(Buffer_ElementType, type, .buffer = buffer);
  destroy_buffer(buffer);
  destroy_client(client);
}

static PJRT_Error *negative_dimensions(PJRT_Buffer_Dimensions_Args *args) {
  static const int64_t dims[] = {2, -3};
  args->dims = dims;
  args->num_dims = 2;
  return NULL;
}

static void negative_result(void) {
  changed.PJRT_Buffer_Dimensions = negative_dimensions;
  wrap();
  PJRT_Client *client = make_client();
  PJRT_Buffer *buffer = make_buffer(client);
  BREAK(Buffer_Dimensions, dimensions, .buffer = buffer);
  destroy_buffer(buffer);
  destroy_client(client);
}

static PJRT_Error *five_outputs(PJRT_Executable_OutputElementTypes_Args *args) {
  static PJRT_Buffer_Type types[] = {PJRT_Buffer_Type_F32, PJRT_Buffer_Type_F32, PJRT_Buffer_Type_F32,
                                     PJRT_Buffer_Type_F32, PJRT_Buffer_Type_F32};
  args->output_types = types;
  args->num_output_types = 5;
  return NULL;
}

static void result_count(void) {
  changed.PJRT_Executable_OutputElementTypes = five_outputs;
  wrap();
  PJRT_Client *client = make_client();
  PJRT_LoadedExecutable *loaded = compile(client, DOUBLE);
  PJRT_Executable *executable = executable_of(loaded);
  CALL(Executable_NumOutputs, outputs, .executable = executable);
  BREAK(Executable_OutputElementTypes, types, .executable = executable);
  destroy_executable(executable);
  destroy_loaded(loaded);
  destroy_client(client);
}

/* ---- errors -------------------------------------------------------------------------------------------------------*/
/* An error of this program, in place of the plugin's. */
static int own_error;
static const char *own_message;
static PJRT_Error_Code own_code;

static PJRT_Error *fails(PJRT_Client_ProcessIndex_Args *args) {
  (void)args;
  return (PJRT_Error *)&own_error;
}

static void message_of(PJRT_Error_Message_Args *args) {
  args->message = own_message;
  args->message_size = strlen(own_message);
}

static PJRT_Error *code_of(PJRT_Error_GetCode_Args *args) {
  args->code = own_code;
  return NULL;
}

static void return_error(const char *message, PJRT_Error_Code code) {
  own_message = message;
  own_code = code;
  changed.PJRT_Client_ProcessIndex = fails;
  changed.PJRT_Error_Message = message_of;
  changed.PJRT_Error_GetCode = code_of;
  changed.PJRT_Error_Destroy = (void (*)(PJRT_Error_Destroy_Args *))success;
  wrap();
  PJRT_Client *client = make_client();
  BREAK(Client_ProcessIndex, index, .client = client);
  destroy_client(client);
}

static void error_without_message(void) { return_error("", PJRT_Error_Code_INTERNAL); }
static void error_code(void) { return_error("no code fits", (PJRT_Error_Code)77); }

const rule_case plugin_cases[] = {
    {"null-result", null_result, true},
    {"null-result-array", null_result_array, true},
    {"unreadable-result", unreadable_result, true},
    {"returned-twice", returned_twice, true},
    {"missing-deleter", missing_deleter, true},
    {"result-out-of-range", result_out_of_range, true},
    {"negative-result", negative_result, true},
    {"result-count", result_count, true},
    {"error-without-message", error_without_message, true},
    {"error-code", error_code, true},
    {NULL, NULL, false},
};
