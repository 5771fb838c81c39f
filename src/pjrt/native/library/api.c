/* GetPjrtApi: the table, each function behind a check of its arguments' size. */
#include "pjrt_support/struct_size.h"
#include "runtime.h"

#define GUARD(name)                                                                                                 \
  static PJRT_Error *guarded_##name(PJRT_##name##_Args *args) {                                                     \
    PJRT_Error *too_short = pjrt_check_size(args, PJRT_##name##_Args_FIRST_STRUCT_SIZE, "PJRT_" #name "_Args");     \
    return too_short ? too_short : native_##name(args);                                                             \
  }
FUNCTIONS(GUARD)

static void destroy_error(PJRT_Error_Destroy_Args *args) {
  if (args->struct_size >= PJRT_Error_Destroy_Args_FIRST_STRUCT_SIZE) pjrt_error_release(args->error);
}

static void read_error(PJRT_Error_Message_Args *args) {
  if (args->struct_size < PJRT_Error_Message_Args_FIRST_STRUCT_SIZE) return;
  pjrt_error_read(args->error, &args->message, &args->message_size);
}

/* ---- the plugin as a whole ------------------------------------------------------------------------------------------*/
/* JAX says "Unable to initialize backend" with this error, and goes on with its other devices. */
PJRT_Error *native_Plugin_Initialize(PJRT_Plugin_Initialize_Args *args) {
  (void)args;
  const pjrt_driver_table *ignored;
  return driver_find(&ignored);
}

PJRT_Error *native_Plugin_Attributes(PJRT_Plugin_Attributes_Args *args) {
  /* The versions of StableHLO that the compiler reads: Python wrote them into the settings, as "1.17.0 0.9.0". */
  static int64_t current[3] = {1, 0, 0}, minimum[3] = {0, 9, 0};
  static PJRT_NamedValue attributes[] = {
      {.struct_size = PJRT_NamedValue_STRUCT_SIZE, .name = "xla_version", .name_size = 11,
       .type = PJRT_NamedValue_kInt64, .int64_value = 2, .value_size = 1},
      {.struct_size = PJRT_NamedValue_STRUCT_SIZE, .name = "stablehlo_current_version", .name_size = 25,
       .type = PJRT_NamedValue_kInt64List, .int64_array_value = current, .value_size = 3},
      {.struct_size = PJRT_NamedValue_STRUCT_SIZE, .name = "stablehlo_minimum_version", .name_size = 25,
       .type = PJRT_NamedValue_kInt64List, .int64_array_value = minimum, .value_size = 3},
  };
  static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&mutex);
  const char *versions = setting("stablehlo");
  long long numbers[6];
  if (versions && sscanf(versions, "%lld.%lld.%lld %lld.%lld.%lld", &numbers[0], &numbers[1], &numbers[2], &numbers[3],
                         &numbers[4], &numbers[5]) == 6) {
    for (int i = 0; i < 3; ++i) current[i] = numbers[i], minimum[i] = numbers[i + 3];
  }
  pthread_mutex_unlock(&mutex);
  args->attributes = attributes;
  args->num_attributes = sizeof attributes / sizeof *attributes;
  return NULL;
}

#define ENTRY(name) .PJRT_##name = guarded_##name,
static const PJRT_Api table = {
    .struct_size = sizeof(PJRT_Api),
    .extension_start = &memory_descriptions_extension.base,
    .pjrt_api_version = {.struct_size = PJRT_Api_Version_STRUCT_SIZE,
                         .major_version = PJRT_API_MAJOR, .minor_version = PJRT_API_MINOR},
    .PJRT_Error_Destroy = destroy_error,
    .PJRT_Error_Message = read_error,
    FUNCTIONS(ENTRY)
};

__attribute__((visibility("default"))) const PJRT_Api *GetPjrtApi(void) { return &table; }
