/* The Layouts extension. A layout is serialized as XLA writes it: {1,0}. */
#include "tiny.h"

struct PJRT_Layouts_MemoryLayout {
  char *text;
};

static PJRT_Layouts_MemoryLayout *layout_make(const tiny_shape *shape) {
  PJRT_Layouts_MemoryLayout *layout = tiny_calloc(1, sizeof *layout);
  layout->text = shape_print_layout(shape);
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
  TINY_SIZED(PJRT_Layouts_MemoryLayout_Destroy_Args, args);
  if (args->layout == NULL) return NULL;
  layout_free(args->layout);
  live_add(LIVE_LAYOUT, -1);
  return NULL;
}

static void free_serialized(PJRT_Layouts_SerializedLayout *serialized) {
  free(serialized);
  live_add(LIVE_SERIALIZED, -1);
}

static PJRT_Error *serialize(PJRT_Layouts_MemoryLayout_Serialize_Args *args) {
  TINY_SIZED(PJRT_Layouts_MemoryLayout_Serialize_Args, args);
  char *copy = tiny_memdup(args->layout->text, strlen(args->layout->text));
  live_add(LIVE_SERIALIZED, 1);
  args->serialized_bytes = copy;
  args->serialized_bytes_size = strlen(copy);
  args->serialized_layout = (PJRT_Layouts_SerializedLayout *)copy;
  args->serialized_layout_deleter = free_serialized;
  return NULL;
}

static PJRT_Error *default_layout(PJRT_Buffer_Type type, const int64_t *dims, size_t num_dims,
                                  PJRT_Layouts_MemoryLayout **out) {
  tiny_shape shape;
  tiny_status *status = shape_init(&shape, type, dims, num_dims, NULL);
  if (status) return error_from(status);
  *out = layout_make(&shape);
  live_add(LIVE_LAYOUT, 1);
  return NULL;
}

static PJRT_Error *client_default(PJRT_Layouts_PJRT_Client_GetDefaultLayout_Args *args) {
  TINY_SIZED(PJRT_Layouts_PJRT_Client_GetDefaultLayout_Args, args);
  return default_layout(args->type, args->dims, args->num_dims, &args->layout);
}

static PJRT_Error *topology_default(PJRT_Layouts_PJRT_Topology_GetDefaultLayout_Args *args) {
  TINY_SIZED(PJRT_Layouts_PJRT_Topology_GetDefaultLayout_Args, args);
  return default_layout(args->type, args->dims, args->num_dims, &args->layout);
}

static PJRT_Error *of_buffer(PJRT_Layouts_PJRT_Buffer_MemoryLayout_Args *args) {
  TINY_SIZED(PJRT_Layouts_PJRT_Buffer_MemoryLayout_Args, args);
  args->layout = layout_make(&args->buffer->shape);
  live_add(LIVE_LAYOUT, 1);
  return NULL;
}

static PJRT_Error *of_outputs(PJRT_Layouts_PJRT_Executable_GetOutputLayouts_Args *args) {
  TINY_SIZED(PJRT_Layouts_PJRT_Executable_GetOutputLayouts_Args, args);
  tiny_executable *core = args->executable->core;
  const tiny_program *program = core->program;
  pthread_mutex_lock(&core->mutex);
  if (core->output_layouts == NULL) {
    core->output_layouts = tiny_calloc(program->num_outputs, sizeof *core->output_layouts);
    for (size_t i = 0; i < program->num_outputs; ++i)
      core->output_layouts[i] = layout_make(&program->values[program->outputs[i].value].shape);
  }
  pthread_mutex_unlock(&core->mutex);
  args->num_outputs = program->num_outputs;
  args->layouts = core->output_layouts;
  return NULL;
}

static PJRT_Error *of_parameters(PJRT_Layouts_PJRT_Executable_GetParameterLayouts_Args *args) {
  TINY_SIZED(PJRT_Layouts_PJRT_Executable_GetParameterLayouts_Args, args);
  tiny_executable *core = args->executable->core;
  const tiny_program *program = core->program;
  pthread_mutex_lock(&core->mutex);
  if (core->parameter_layouts == NULL) {
    core->parameter_layouts = tiny_calloc(program->num_parameters, sizeof *core->parameter_layouts);
    for (size_t i = 0; i < program->num_parameters; ++i)
      core->parameter_layouts[i] = layout_make(&program->values[i].shape);
  }
  pthread_mutex_unlock(&core->mutex);
  args->num_parameters = program->num_parameters;
  args->layouts = core->parameter_layouts;
  return NULL;
}

PJRT_Layouts_Extension layouts_extension = {
    TINY_EXTENSION(PJRT_Layouts_Extension, Layouts),
    .PJRT_Layouts_MemoryLayout_Destroy = destroy,
    .PJRT_Layouts_MemoryLayout_Serialize = serialize,
    .PJRT_Layouts_PJRT_Client_GetDefaultLayout = client_default,
    .PJRT_Layouts_PJRT_Buffer_MemoryLayout = of_buffer,
    .PJRT_Layouts_PJRT_Topology_GetDefaultLayout = topology_default,
    .PJRT_Layouts_PJRT_Executable_GetOutputLayouts = of_outputs,
    .PJRT_Layouts_PJRT_Executable_GetParameterLayouts = of_parameters,
};
