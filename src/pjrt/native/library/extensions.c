/* The extensions: how arrays lie in memory (Layouts), as XLA writes it, {1,0}. */
#include "pjrt_support/struct_size.h"
#include "runtime.h"

#define SIZED(type, args)                                                                     \
  do {                                                                                        \
    PJRT_Error *too_short = pjrt_check_size(args, type##_FIRST_STRUCT_SIZE, #type);           \
    if (too_short) return too_short;                                                          \
  } while (0)

struct PJRT_Layouts_MemoryLayout {
  char *text;
};

static PJRT_Layouts_MemoryLayout *layout_make(const shape *of) {
  PJRT_Layouts_MemoryLayout *layout = new_zeroed(1, sizeof *layout);
  layout->text = layout_text(of);
  return layout;
}

static void layout_free(PJRT_Layouts_MemoryLayout *layout) {
  free(layout->text);
  free(layout);
}

void layouts_free(PJRT_Layouts_MemoryLayout **layouts, size_t count) {
  for (size_t i = 0; layouts && i < count; ++i) layout_free(layouts[i]);
  free(layouts);
}

static PJRT_Error *destroy(PJRT_Layouts_MemoryLayout_Destroy_Args *args) {
  SIZED(PJRT_Layouts_MemoryLayout_Destroy_Args, args);
  if (args->layout) layout_free(args->layout);
  return NULL;
}

static void free_serialized(PJRT_Layouts_SerializedLayout *serialized) { free(serialized); }

static PJRT_Error *serialize(PJRT_Layouts_MemoryLayout_Serialize_Args *args) {
  SIZED(PJRT_Layouts_MemoryLayout_Serialize_Args, args);
  char *copy = copy_of(args->layout->text, strlen(args->layout->text));
  args->serialized_bytes = copy;
  args->serialized_bytes_size = strlen(copy);
  args->serialized_layout = (PJRT_Layouts_SerializedLayout *)copy;
  args->serialized_layout_deleter = free_serialized;
  return NULL;
}

static PJRT_Error *default_layout(PJRT_Buffer_Type type, const int64_t *dims, size_t num_dims,
                                  PJRT_Layouts_MemoryLayout **out) {
  shape of;
  PJRT_Error *error = shape_init(&of, type, dims, num_dims, NULL);
  if (!error) *out = layout_make(&of);
  return error;
}

static PJRT_Error *client_default(PJRT_Layouts_PJRT_Client_GetDefaultLayout_Args *args) {
  SIZED(PJRT_Layouts_PJRT_Client_GetDefaultLayout_Args, args);
  return default_layout(args->type, args->dims, args->num_dims, &args->layout);
}

static PJRT_Error *topology_default(PJRT_Layouts_PJRT_Topology_GetDefaultLayout_Args *args) {
  SIZED(PJRT_Layouts_PJRT_Topology_GetDefaultLayout_Args, args);
  return default_layout(args->type, args->dims, args->num_dims, &args->layout);
}

static PJRT_Error *of_buffer(PJRT_Layouts_PJRT_Buffer_MemoryLayout_Args *args) {
  SIZED(PJRT_Layouts_PJRT_Buffer_MemoryLayout_Args, args);
  args->layout = layout_make(&args->buffer->shape);
  return NULL;
}

/* An executable's layouts are made when they are asked for, and live as long as it. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static PJRT_Error *of_outputs(PJRT_Layouts_PJRT_Executable_GetOutputLayouts_Args *args) {
  SIZED(PJRT_Layouts_PJRT_Executable_GetOutputLayouts_Args, args);
  executable *core = args->executable->core;
  pthread_mutex_lock(&mutex);
  if (core->output_layouts == NULL) {
    core->output_layouts = new_zeroed(core->num_outputs, sizeof *core->output_layouts);
    for (size_t i = 0; i < core->num_outputs; ++i) core->output_layouts[i] = layout_make(&core->outputs[i].shape);
  }
  pthread_mutex_unlock(&mutex);
  args->num_outputs = core->num_outputs;
  args->layouts = core->output_layouts;
  return NULL;
}

static PJRT_Error *of_parameters(PJRT_Layouts_PJRT_Executable_GetParameterLayouts_Args *args) {
  SIZED(PJRT_Layouts_PJRT_Executable_GetParameterLayouts_Args, args);
  executable *core = args->executable->core;
  pthread_mutex_lock(&mutex);
  if (core->parameter_layouts == NULL) {
    core->parameter_layouts = new_zeroed(core->num_parameters, sizeof *core->parameter_layouts);
    for (size_t i = 0; i < core->num_parameters; ++i)
      core->parameter_layouts[i] = layout_make(&core->parameters[i].shape);
  }
  pthread_mutex_unlock(&mutex);
  args->num_parameters = core->num_parameters;
  args->layouts = core->parameter_layouts;
  return NULL;
}

PJRT_Layouts_Extension layouts_extension = {
    .base = {.struct_size = PJRT_Layouts_Extension_STRUCT_SIZE, .type = PJRT_Extension_Type_Layouts},
    .PJRT_Layouts_MemoryLayout_Destroy = destroy,
    .PJRT_Layouts_MemoryLayout_Serialize = serialize,
    .PJRT_Layouts_PJRT_Client_GetDefaultLayout = client_default,
    .PJRT_Layouts_PJRT_Buffer_MemoryLayout = of_buffer,
    .PJRT_Layouts_PJRT_Topology_GetDefaultLayout = topology_default,
    .PJRT_Layouts_PJRT_Executable_GetOutputLayouts = of_outputs,
    .PJRT_Layouts_PJRT_Executable_GetParameterLayouts = of_parameters,
};
