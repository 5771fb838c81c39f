/* The extensions whose layout this package states: each a struct in the chain that starts at PJRT_Api.extension_start. */
#ifndef PJRT_ABI_EXTENSIONS_H_
#define PJRT_ABI_EXTENSIONS_H_

#include "extensions/abi_version.h"
#include "extensions/callback.h"
#include "extensions/collectives.h"
#include "extensions/cross_host_transfers.h"
#include "extensions/custom_partitioner.h"
#include "extensions/executable_metadata.h"
#include "extensions/ffi.h"
#include "extensions/host_allocator.h"
#include "extensions/host_memory_allocator.h"
#include "extensions/layouts.h"
#include "extensions/megascale.h"
#include "extensions/memory_descriptions.h"
#include "extensions/multi_slice.h"
#include "extensions/phase_compile.h"
#include "extensions/profiler.h"
#include "extensions/raw_buffer.h"
#include "extensions/shardings.h"
#include "extensions/stream.h"
#include "extensions/tpu_executable.h"
#include "extensions/tpu_topology.h"
#include "extensions/triton.h"

#endif  /* PJRT_ABI_EXTENSIONS_H_ */
