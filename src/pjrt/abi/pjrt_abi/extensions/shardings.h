/* Shardings: how a compiled program spreads its parameters and results. The arrays (serialized OpSharding protos)
 * are owned by the executable, and null where the plugin has none. */
#ifndef PJRT_ABI_EXTENSIONS_SHARDINGS_H_
#define PJRT_ABI_EXTENSIONS_SHARDINGS_H_

#include "../base.h"

typedef struct PJRT_Shardings_PJRT_Executable_ParameterShardings_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Executable *executable;
  size_t num_parameters;  /* out */
  const char *const *shardings;  /* out, null, bytes */
  const size_t *sharding_sizes;  /* out, null */
} PJRT_Shardings_PJRT_Executable_ParameterShardings_Args;

typedef struct PJRT_Shardings_PJRT_Executable_OutputShardings_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Executable *executable;
  size_t num_outputs;  /* out */
  const char *const *shardings;  /* out, null, bytes */
  const size_t *sharding_sizes;  /* out, null */
} PJRT_Shardings_PJRT_Executable_OutputShardings_Args;

typedef struct PJRT_Shardings_Extension {
  PJRT_Extension_Base base;
  PJRT_Error *(*PJRT_Shardings_PJRT_Executable_ParameterShardings)(PJRT_Shardings_PJRT_Executable_ParameterShardings_Args *args);
  PJRT_Error *(*PJRT_Shardings_PJRT_Executable_OutputShardings)(PJRT_Shardings_PJRT_Executable_OutputShardings_Args *args);
} PJRT_Shardings_Extension;

#endif  /* PJRT_ABI_EXTENSIONS_SHARDINGS_H_ */
