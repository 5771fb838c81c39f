#include "view.h"

/* Whether the plugin has the function and it succeeds; an error is destroyed. */
static bool ask(pjrt_stack *stack, int function, void *args) {
  void *error = NULL, *ignored = NULL;
  if (!pjrt_call_below(stack, function, args, &error)) return false;
  if (error == NULL) return true;
  PJRT_Error_Destroy_Args destroy = {.struct_size = sizeof destroy, .error = error};
  pjrt_call_below(stack, PJRT_FUNCTION_Error_Destroy, &destroy, &ignored);
  return false;
}

bool record_event_succeeded(pjrt_stack *stack, PJRT_Event *event) {
  PJRT_Event_Error_Args args = {.struct_size = sizeof args, .event = event};
  return ask(stack, PJRT_FUNCTION_Event_Error, &args);
}

static bool is_ready(pjrt_stack *stack, PJRT_Buffer *buffer) {
  PJRT_Buffer_ReadyEvent_Args get = {.struct_size = sizeof get, .buffer = buffer};
  if (!ask(stack, PJRT_FUNCTION_Buffer_ReadyEvent, &get)) return false;
  PJRT_Event_IsReady_Args ready = {.struct_size = sizeof ready, .event = get.event};
  const bool answer = ask(stack, PJRT_FUNCTION_Event_IsReady, &ready) && ready.is_ready &&
                      record_event_succeeded(stack, get.event);
  PJRT_Event_Destroy_Args destroy = {.struct_size = sizeof destroy, .event = get.event};
  ask(stack, PJRT_FUNCTION_Event_Destroy, &destroy);
  return answer;
}

bool record_view(pjrt_stack *stack, PJRT_Buffer *buffer, const void **data, size_t *size) {
  PJRT_Buffer_IsOnCpu_Args host = {.struct_size = sizeof host, .buffer = buffer};
  PJRT_Buffer_IsDeleted_Args deleted = {.struct_size = sizeof deleted, .buffer = buffer};
  PJRT_Buffer_OnDeviceSizeInBytes_Args bytes = {.struct_size = sizeof bytes, .buffer = buffer};
  PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args memory = {.struct_size = sizeof memory, .buffer = buffer};
  if (buffer == NULL || !ask(stack, PJRT_FUNCTION_Buffer_IsOnCpu, &host) || !host.is_on_cpu ||
      !ask(stack, PJRT_FUNCTION_Buffer_IsDeleted, &deleted) || deleted.is_deleted || !is_ready(stack, buffer) ||
      !ask(stack, PJRT_FUNCTION_Buffer_OnDeviceSizeInBytes, &bytes) ||
      !ask(stack, PJRT_FUNCTION_Buffer_OpaqueDeviceMemoryDataPointer, &memory))
    return false;
  *data = memory.device_memory_ptr;
  *size = bytes.on_device_size_in_bytes;
  return *data != NULL;
}
