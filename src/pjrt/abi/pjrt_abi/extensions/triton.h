/* Triton: compiles a kernel given as Triton IR. */
#ifndef PJRT_ABI_EXTENSIONS_TRITON_H_
#define PJRT_ABI_EXTENSIONS_TRITON_H_

#include "../base.h"

/* out_asm and out_path are allocated with malloc and belong to the caller. */
typedef struct PJRT_Triton_Compile_Args {
  size_t struct_size;
  const char *module;
  size_t module_size;
  const char *arch_name;
  size_t arch_name_size;
  int num_warps;
  int num_ctas;
  int num_stages;
  const char *out_asm;  /* out, new */
  size_t out_asm_size;  /* out */
  int64_t out_smem_bytes;  /* out */
  const char *out_path;  /* out, new */
  size_t out_path_size;  /* out */
} PJRT_Triton_Compile_Args;

typedef struct PJRT_Triton_Extension {
  PJRT_Extension_Base base;
  PJRT_Error *(*compile)(PJRT_Triton_Compile_Args *args);
} PJRT_Triton_Extension;

#endif  /* PJRT_ABI_EXTENSIONS_TRITON_H_ */
