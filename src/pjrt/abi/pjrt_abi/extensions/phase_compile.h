/* PhaseCompile: compiling one phase after the other. Input and output of a phase are lists of serialized
 * xla.PjRtPartialProgramProto: {1 code, 2 format, 3 the phase that made it, 4 the phases that may read it, 5
 * version, 6 name}. */
#ifndef PJRT_ABI_EXTENSIONS_PHASE_COMPILE_H_
#define PJRT_ABI_EXTENSIONS_PHASE_COMPILE_H_

#include "../base.h"

typedef struct PJRT_PhaseCompiler PJRT_PhaseCompiler;

/* The compiler belongs to the caller. */
typedef struct PJRT_PhaseCompile_Get_Compiler_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  const PJRT_PhaseCompiler *phase_compiler;  /* out */
} PJRT_PhaseCompile_Get_Compiler_Args;

typedef struct PJRT_PhaseCompile_Destroy_Compiler_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  const PJRT_PhaseCompiler *phase_compiler;
} PJRT_PhaseCompile_Destroy_Compiler_Args;

/* Runs phases in the given order, each on the output of the one before it. The caller frees the results with
 * phase_compile_c_buffers_destroy. */
typedef struct PJRT_PhaseCompile_Run_Phase_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  const PJRT_PhaseCompiler *phase_compiler;
  const char **input_programs;  /* bytes */
  const size_t *input_programs_sizes;
  size_t num_input_programs;
  const char **phases_to_run;
  const size_t *phases_to_run_sizes;
  size_t num_phases_to_run;
  const char *compile_options;
  size_t compile_options_size;
  PJRT_TopologyDescription *topology;
  const char **output_programs;  /* out, new, bytes */
  const size_t *output_programs_sizes;  /* out */
  size_t num_output_programs;  /* out */
} PJRT_PhaseCompile_Run_Phase_Args;

/* The caller frees the names with phase_compile_c_buffers_destroy. */
typedef struct PJRT_PhaseCompile_Get_PhaseNames_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  const PJRT_PhaseCompiler *phase_compiler;
  const char **phase_names;  /* out, new */
  const size_t *phase_names_sizes;  /* out */
  size_t num_phase_names;  /* out */
} PJRT_PhaseCompile_Get_PhaseNames_Args;

typedef struct PJRT_PhaseCompile_C_Buffers_Destroy_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  const char **char_buffers;  /* destroys, bytes */
  const size_t *char_buffer_sizes;
  size_t num_char_buffers;
} PJRT_PhaseCompile_C_Buffers_Destroy_Args;

/* The first form of this extension ended with phase_compile_get_phase_names, and had no function to free the
 * buffers.
 *
 * A plugin of 0.117 has 16 more functions at the end. They compile a part of a program apart, and link such parts (a
 * PJRT_Relocatable) later. No public header states their arguments, so nothing calls them. They are, in order:
 * PJRT_Relocatable_ Destroy, Name, BuildId, CallBackendConfig, HasSideEffects, Serialize, ParameterElementTypes,
 * OutputElementTypes, ParameterDimensions, OutputDimensions, ParameterLayouts, OutputLayouts, ParameterOutputAliases;
 * PJRT_PhaseCompile_ CompileToRelocatable, DeserializeRelocatable, LinkRelocatables. */
typedef struct PJRT_PhaseCompile_Extension {
  PJRT_Extension_Base base;
  PJRT_Error *(*phase_compile_get_compiler)(PJRT_PhaseCompile_Get_Compiler_Args *args);
  void (*phase_compile_destroy_compiler)(PJRT_PhaseCompile_Destroy_Compiler_Args *args);
  PJRT_Error *(*phase_compile_run_phases)(PJRT_PhaseCompile_Run_Phase_Args *args);
  PJRT_Error *(*phase_compile_get_phase_names)(PJRT_PhaseCompile_Get_PhaseNames_Args *args);
  void (*phase_compile_c_buffers_destroy)(PJRT_PhaseCompile_C_Buffers_Destroy_Args *args);
} PJRT_PhaseCompile_Extension;

#endif  /* PJRT_ABI_EXTENSIONS_PHASE_COMPILE_H_ */
