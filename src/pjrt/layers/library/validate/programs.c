/* Executions: counts, donation, outputs. */
#include "programs.h"

#include <inttypes.h>

#include "validate.h"

#define F(name) PJRT_FUNCTION_##name
#define HAS(args, type, field) ((args)->struct_size >= offsetof(type, field) + sizeof((args)->field))

void pjrt_program_facts_free(pjrt_program_facts *facts) {
  if (facts == NULL) return;
  free(facts->donation);
  free(facts);
}

/* ---- asking the plugin --------------------------------------------------------------------------------------------*/
/* Calls below all layers; an error only means that the answer is unknown. */
static bool ask(pjrt_check *check, int function, void *args) {
  void *error = NULL;
  if (!pjrt_call_below(check->validate->stack, function, args, &error)) return false;
  if (error == NULL) return true;
  PJRT_Error_Destroy_Args destroy = {.struct_size = PJRT_Error_Destroy_Args_STRUCT_SIZE, .error = error};
  pjrt_call_below(check->validate->stack, F(Error_Destroy), &destroy, &error);
  return false;
}

static void ask_executable(pjrt_check *check, PJRT_Executable *executable, pjrt_program_facts *facts) {
  PJRT_Executable_NumOutputs_Args outputs = {.struct_size = PJRT_Executable_NumOutputs_Args_STRUCT_SIZE,
                                             .executable = executable};
  PJRT_Executable_ParameterMemoryKinds_Args parameters = {
      .struct_size = PJRT_Executable_ParameterMemoryKinds_Args_STRUCT_SIZE, .executable = executable};
  if (ask(check, F(Executable_NumOutputs), &outputs)) facts->num_outputs = (int64_t)outputs.num_outputs;
  if (ask(check, F(Executable_ParameterMemoryKinds), &parameters))
    facts->num_arguments = (int64_t)parameters.num_parameters;
  PJRT_Executable_Destroy_Args destroy = {.struct_size = PJRT_Executable_Destroy_Args_STRUCT_SIZE,
                                          .executable = executable};
  ask(check, F(Executable_Destroy), &destroy);
}

static pjrt_program_facts *ask_facts(pjrt_check *check, PJRT_LoadedExecutable *loaded) {
  pjrt_program_facts *facts = calloc(1, sizeof *facts);
  if (facts == NULL) return NULL;
  facts->num_arguments = facts->num_outputs = facts->num_devices = -1;
  PJRT_LoadedExecutable_AddressableDevices_Args devices = {
      .struct_size = PJRT_LoadedExecutable_AddressableDevices_Args_STRUCT_SIZE, .executable = loaded};
  PJRT_LoadedExecutable_GetExecutable_Args executable = {
      .struct_size = PJRT_LoadedExecutable_GetExecutable_Args_STRUCT_SIZE, .loaded_executable = loaded};
  if (ask(check, F(LoadedExecutable_AddressableDevices), &devices))
    facts->num_devices = (int64_t)devices.num_addressable_devices;
  if (ask(check, F(LoadedExecutable_GetExecutable), &executable) && executable.executable != NULL)
    ask_executable(check, executable.executable, facts);
  return facts;
}

/* The facts live as long as the executable's record, which stays while a call uses the executable. */
static pjrt_program_facts *facts_of(pjrt_check *check, PJRT_LoadedExecutable *loaded) {
  pjrt_handle_shard *shard = pjrt_handles_lock(&check->validate->handles, loaded);
  pjrt_handle_record *record = pjrt_handles_find(shard, loaded, PJRT_HANDLE_LoadedExecutable);
  pjrt_program_facts *facts = record != NULL ? record->program : NULL;
  const bool live = record != NULL && record->state == PJRT_HANDLE_LIVE;
  pjrt_handles_unlock(shard);
  if (facts != NULL || !live) return facts;
  pjrt_program_facts *fresh = ask_facts(check, loaded);
  shard = pjrt_handles_lock(&check->validate->handles, loaded);
  record = pjrt_handles_find(shard, loaded, PJRT_HANDLE_LoadedExecutable);
  if (record != NULL && record->program == NULL && record->state == PJRT_HANDLE_LIVE) {
    facts = record->program = fresh;
    fresh = NULL;
  } else {
    facts = record != NULL ? record->program : NULL;
  }
  pjrt_handles_unlock(shard);
  pjrt_program_facts_free(fresh);
  return facts;
}

/* ---- before -------------------------------------------------------------------------------------------------------*/
static bool is_kept(const PJRT_ExecuteOptions *options, size_t argument) {
  if (!HAS(options, PJRT_ExecuteOptions, num_non_donatable_input_indices)) return false;
  if (options->non_donatable_input_indices == NULL) return false;
  for (size_t i = 0; i < options->num_non_donatable_input_indices; i++) {
    if (options->non_donatable_input_indices[i] == (int64_t)argument) return true;
  }
  return false;
}

static void check_counts(pjrt_check *check, const pjrt_program_facts *facts) {
  const PJRT_LoadedExecutable_Execute_Args *args = check->args;
  const bool one = HAS(args, PJRT_LoadedExecutable_Execute_Args, execute_device) && args->execute_device != NULL;
  if (facts->num_arguments >= 0 && (int64_t)args->num_args != facts->num_arguments)
    pjrt_found(check, PJRT_RULE_ARGUMENT_COUNT, "num_args", NULL, "it is %zu, and the program takes %" PRId64,
               args->num_args, facts->num_arguments);
  const int64_t expected = one ? 1 : facts->num_devices;
  if (expected >= 0 && (int64_t)args->num_devices != expected)
    pjrt_found(check, PJRT_RULE_DEVICE_COUNT, "num_devices", NULL, "it is %zu, expected %" PRId64, args->num_devices,
               expected);
}

static int32_t references_of(pjrt_check *check, const PJRT_Buffer *buffer, pjrt_handle_record *copy) {
  pjrt_handle_shard *shard = pjrt_handles_lock(&check->validate->handles, buffer);
  const pjrt_handle_record *record = pjrt_handles_find(shard, buffer, PJRT_HANDLE_Buffer);
  if (record != NULL) *copy = *record;
  pjrt_handles_unlock(shard);
  return record != NULL ? copy->references : 0;
}

/* What the program donates is known from its earlier executions. */
static void check_donations(pjrt_check *check, const pjrt_program_facts *facts, size_t list) {
  const PJRT_LoadedExecutable_Execute_Args *args = check->args;
  PJRT_Buffer *const *buffers = args->argument_lists[list];
  pjrt_handle_record copy;
  char name[96];
  for (size_t i = 0; i < args->num_args; i++) {
    if (facts->donation[i] != PJRT_DONATED || is_kept(args->options, i)) continue;
    snprintf(name, sizeof name, "argument_lists[%zu][%zu]", list, i);
    for (size_t j = 0; j < args->num_args; j++) {
      if (j != i && buffers[j] == buffers[i])
        pjrt_found(check, PJRT_RULE_DONATED_TWICE, name, NULL, "it is argument %zu, too", j);
    }
    if (references_of(check, buffers[i], &copy) > 0)
      pjrt_found(check, PJRT_RULE_DONATED_WITH_REFERENCES, name, &copy, "it has %" PRId32 " external references",
                 copy.references);
  }
}

/* So that an output that the plugin does not set is not taken for one. */
static void clear_outputs(const PJRT_LoadedExecutable_Execute_Args *args, const pjrt_program_facts *facts) {
  for (size_t i = 0; facts->num_outputs > 0 && args->output_lists != NULL && i < args->num_devices; i++) {
    if (args->output_lists[i] != NULL)
      memset((void *)args->output_lists[i], 0, (size_t)facts->num_outputs * sizeof(PJRT_Buffer *));
  }
  for (size_t i = 0; args->device_complete_events != NULL && i < args->num_devices; i++)
    args->device_complete_events[i] = NULL;
}

/* ---- lists --------------------------------------------------------------------------------------------------------*/
/* The name of a list, in a buffer only where it is not the first. */
static const char *list_name(const char *name, const char *first, size_t list, char *buffer, size_t size) {
  if (list == 0) return first;
  snprintf(buffer, size, "%s[%zu]", name, list);
  return buffer;
}

static uint64_t bytes_of(uint64_t count, uint64_t size) {
  return count > UINT64_C(1) << 40 ? UINT64_MAX >> 1 : count * size; /* no memory is that large */
}

/* Whether there is one list for each device, each with memory for its elements. */
static bool check_lists(pjrt_check *check, const char *name, const char *first, const void *const *lists, size_t number,
                        size_t size) {
  const PJRT_LoadedExecutable_Execute_Args *args = check->args;
  char buffer[96];
  if (number == 0 || args->num_devices == 0) return false;
  if (lists == NULL) {
    pjrt_found(check, PJRT_RULE_NULL_ARRAY, name, NULL, "it is null, expected %zu lists", args->num_devices);
    return false;
  }
  if (!pjrt_check_readable(check, name, lists, bytes_of(args->num_devices, sizeof *lists))) return false;
  for (size_t i = 0; i < args->num_devices; i++) {
    const char *list = list_name(name, first, i, buffer, sizeof buffer);
    if (lists[i] != NULL) {
      if (!pjrt_check_readable(check, list, lists[i], bytes_of(number, size))) return false;
    } else {
      pjrt_found(check, PJRT_RULE_NULL_ARRAY, list, NULL, "it is null, expected %zu elements", number);
      return false;
    }
  }
  return true;
}

static void check_arguments(pjrt_check *check) {
  static const pjrt_field argument = {.name = "argument_lists", .kind = PJRT_KIND_HANDLE, .type = PJRT_HANDLE_Buffer,
                                      .count = -1, .inner_count = -1, .owner = -1, .variant = -1};
  const PJRT_LoadedExecutable_Execute_Args *args = check->args;
  char buffer[96];
  if (!check_lists(check, "argument_lists", "argument_lists[0]", (const void *const *)args->argument_lists,
                   args->num_args, sizeof(void *)))
    return;
  for (size_t i = 0; i < args->num_devices; i++) {
    const char *list = list_name("argument_lists", "argument_lists[0]", i, buffer, sizeof buffer);
    for (size_t j = 0; j < args->num_args && !check->refused; j++) {
      check->element = (int64_t)j;
      pjrt_check_handle(check, &argument, list, (void *)args->argument_lists[i][j]);
    }
  }
  check->element = -1;
}

/* The lists whose lengths no field of their own struct has. */
static void check_other_lists(pjrt_check *check, const pjrt_program_facts *facts) {
  const PJRT_LoadedExecutable_Execute_Args *args = check->args;
  const PJRT_ExecuteOptions *options = args->options;
  const bool has_outputs = facts != NULL && facts->num_outputs > 0 && args->output_lists != NULL;
  if (has_outputs)
    check_lists(check, "output_lists", "output_lists[0]", (const void *const *)args->output_lists,
                (size_t)facts->num_outputs, sizeof(void *));
  if (!HAS(options, PJRT_ExecuteOptions, num_recv_ops) || check->refused) return;
  if (options->send_callbacks != NULL)
    check_lists(check, "send_callbacks", "send_callbacks[0]", (const void *const *)options->send_callbacks,
                options->num_send_ops, sizeof(PJRT_SendCallbackInfo));
  if (options->recv_callbacks != NULL && !check->refused)
    check_lists(check, "recv_callbacks", "recv_callbacks[0]", (const void *const *)options->recv_callbacks,
                options->num_recv_ops, sizeof(PJRT_RecvCallbackInfo));
}

void pjrt_before_execution(pjrt_check *check) {
  const PJRT_LoadedExecutable_Execute_Args *args = check->args;
  check_arguments(check);
  if (check->refused) return;
  pjrt_program_facts *facts = facts_of(check, args->executable);
  check->facts = facts;
  check_other_lists(check, facts);
  if (facts == NULL || check->refused) return;
  check_counts(check, facts);
  const bool counted = facts->num_arguments < 0 || (int64_t)args->num_args == facts->num_arguments;
  for (size_t i = 0; facts->donation != NULL && counted && !check->refused && i < args->num_devices; i++)
    check_donations(check, facts, i);
  if (!check->refused) clear_outputs(args, facts);
}

/* ---- after --------------------------------------------------------------------------------------------------------*/
static bool is_deleted(pjrt_check *check, PJRT_Buffer *buffer) {
  PJRT_Buffer_IsDeleted_Args args = {.struct_size = PJRT_Buffer_IsDeleted_Args_STRUCT_SIZE, .buffer = buffer};
  return ask(check, F(Buffer_IsDeleted), &args) && args.is_deleted;
}

/* Asks which arguments are gone: all after the first execution, later only those that were gone before. */
static void note_donations(pjrt_check *check, pjrt_program_facts *facts) {
  const PJRT_LoadedExecutable_Execute_Args *args = check->args;
  if (args->num_args == 0) return;
  if (facts->donation == NULL) {
    uint8_t *fresh = calloc(args->num_args, 1), *none = NULL;
    if (fresh == NULL) return;
    if (!atomic_compare_exchange_strong((_Atomic(uint8_t *) *)&facts->donation, &none, fresh)) free(fresh);
    if (facts->num_arguments < 0) facts->num_arguments = (int64_t)args->num_args;
  }
  if ((int64_t)args->num_args != facts->num_arguments) return;
  for (size_t i = 0; i < args->num_args; i++) {
    if (facts->donation[i] == PJRT_NEVER_DONATED || is_kept(args->options, i)) continue;
    bool gone = false;
    for (size_t list = 0; list < args->num_devices; list++) {
      PJRT_Buffer *buffer = args->argument_lists[list][i];
      if (!is_deleted(check, buffer)) continue;
      gone = true;
      pjrt_end_donated(check, buffer);
    }
    if (facts->donation[i] == PJRT_MAYBE_DONATED) facts->donation[i] = gone ? PJRT_DONATED : PJRT_NEVER_DONATED;
  }
}

void pjrt_after_execution(pjrt_check *check) {
  static const pjrt_field output = {.name = "output_lists", .kind = PJRT_KIND_HANDLE, .type = PJRT_HANDLE_Buffer,
                                    .marks = PJRT_MARK_CREATES, .count = -1, .inner_count = -1, .owner = -1,
                                    .variant = -1};
  const PJRT_LoadedExecutable_Execute_Args *args = check->args;
  pjrt_program_facts *facts = check->facts;
  char name[96];
  if (facts == NULL) return;
  for (size_t i = 0; args->output_lists != NULL && i < args->num_devices; i++) {
    for (int64_t j = 0; args->output_lists[i] != NULL && j < facts->num_outputs; j++) {
      PJRT_Buffer *buffer = args->output_lists[i][j];
      if (buffer != NULL) {
        pjrt_note_handle(check, &output, "output_lists", buffer);
      } else {
        snprintf(name, sizeof name, "output_lists[%zu][%" PRId64 "]", i, j);
        pjrt_found(check, PJRT_RULE_NULL_RESULT_ARRAY, name, NULL, "it is null, and there is no error");
      }
    }
  }
  note_donations(check, facts);
}

/* ---- counts of outputs --------------------------------------------------------------------------------------------*/
/* Each of these functions reports how many outputs an executable has. */
void pjrt_check_counts(pjrt_check *check) {
  const PJRT_Executable *executable;
  size_t count;
  switch (check->frame->index) {
#define COUNTED(function, field)                                          \
  case F(function):                                                       \
    executable = ((PJRT_##function##_Args *)check->args)->executable;     \
    count = ((PJRT_##function##_Args *)check->args)->field;               \
    break;
    COUNTED(Executable_NumOutputs, num_outputs)
    COUNTED(Executable_OutputElementTypes, num_output_types)
    COUNTED(Executable_OutputDimensions, num_outputs)
    COUNTED(Executable_OutputMemoryKinds, num_outputs)
#undef COUNTED
    default: return;
  }
  pjrt_handle_shard *shard = pjrt_handles_lock(&check->validate->handles, executable);
  pjrt_handle_record *record = pjrt_handles_find(shard, executable, PJRT_HANDLE_Executable);
  const int64_t known = record != NULL ? record->num_outputs - 1 : -1;
  if (record != NULL && known < 0) record->num_outputs = (int64_t)count + 1;
  pjrt_handles_unlock(shard);
  if (known >= 0 && known != (int64_t)count)
    pjrt_found(check, PJRT_RULE_RESULT_COUNT, NULL, NULL, "it reports %zu outputs, and another function %" PRId64, count,
               known);
}
