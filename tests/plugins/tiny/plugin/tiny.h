/* What the files of the tiny plugin offer to each other. The nouns of the runtime are those of its own header. */
#ifndef TINY_H_
#define TINY_H_

#include "pjrt_support/struct_size.h"

#include "faults.h"
#include "runtime.h"

#define TINY_MAX_DEVICES 64
#define TINY_NUM_MEMORY_KINDS 3
#define TINY_PLATFORM_NAME "tiny"
#ifndef TINY_PLATFORM_VERSION
#define TINY_PLATFORM_VERSION "tiny 1.0"
#endif

void bytes_print(bytes *out, const char *format, ...) PRINTS(2, 3);

/* ---- faults.c: what tests switch and count ------------------------------------------------------------------------*/
#define TINY_VOID_FUNCTIONS(X) X(Error_Destroy) X(Error_Message)

/* The functions of extensions that can be made to fail, and that check how their struct is stamped. */
#define TINY_EXTENSION_FUNCTIONS(X)                                                                                   \
  X(PhaseCompile_Get_Compiler) X(PhaseCompile_Get_PhaseNames) X(PhaseCompile_Run_Phase) X(TpuTopology_Subslice)      \
  X(TpuTopology_IsSubsliceTopology) X(TpuTopology_SubsliceDeviceIdFromFullDeviceId)                                  \
  X(TpuTopology_ReplaceHostBounds) X(TpuTopology_IsEnhancedBarrierEnabled)                                           \
  X(TpuTopology_HasLimitedIciConnectivity) X(TpuTopology_IsReachableOverLimitedIci) X(TpuTopology_ProcessCount)      \
  X(TpuTopology_ChipsPerProcess) X(TpuTopology_CoreCountPerChip) X(TpuTopology_ChipCount) X(TpuTopology_CoreCount)   \
  X(TpuTopology_LogiDeviceCountPerProcess) X(TpuTopology_LogiDeviceCount) X(TpuTopology_LogiDeviceCountPerChip)      \
  X(TpuTopology_CoreCountPerProcess) X(TpuTopology_ProcessIds) X(TpuTopology_LogiDeviceIdsOnProcess)                 \
  X(TpuTopology_ProcIdAndIdxOnProcForChip) X(TpuTopology_ProcIdAndIdxOnProcForLogiDevice)                            \
  X(TpuTopology_ProcessCoordFromId) X(TpuTopology_ChipIdFromCoord) X(TpuTopology_LogiDeviceIdFromChipCoordAndIdx)    \
  X(TpuTopology_ChipCoordAndIdxForLogiDevice) X(TpuTopology_ChipsPerProcessBounds) X(TpuTopology_ChipBounds)         \
  X(TpuTopology_ProcessBounds) X(TpuTopology_GetRoutingStrategy) X(TpuExecutable_GetTargetArguments)                 \
  X(TpuExecutable_GetHloModuleWithConfig) X(TpuExecutable_GetCompiledMemoryStats) X(TpuExecutable_RunHloCostAnalysis) \
  X(TpuExecutable_SetTpuCompilationEnv) X(TpuExecutable_GetTpuCompilationEnvFieldAsString)                           \
  X(Megascale_CreateAoTConfig) X(Megascale_DeviceId_To_MegascaleId) X(Megascale_MegascaleId_To_DeviceId)             \
  X(MultiSlice_Config_Destroy) X(MultiSlice_Config_NumSlices) X(MultiSlice_Config_SliceId)                           \
  X(MultiSlice_Config_NumDevicesPerSlice) X(MultiSlice_Config_Serialize)

/* F_Client_Create, F_Client_Destroy, …: the position of each in the table, and behind it those of extensions. */
#define TINY_SLOT(name) \
  ((offsetof(PJRT_Api, PJRT_##name) - offsetof(PJRT_Api, PJRT_Error_Destroy)) / sizeof(void *))
#define TINY_FUNCTION_ID(name) F_##name = TINY_SLOT(name),
#define TINY_EXTENSION_FUNCTION_ID(name) F_##name,
typedef enum {
  TINY_VOID_FUNCTIONS(TINY_FUNCTION_ID) FUNCTIONS(TINY_FUNCTION_ID)
  F_LAST_OF_TABLE = (sizeof(PJRT_Api) - offsetof(PJRT_Api, PJRT_Error_Destroy)) / sizeof(void *) - 1,
  TINY_EXTENSION_FUNCTIONS(TINY_EXTENSION_FUNCTION_ID) F_ALL,
  F_COUNT = F_LAST_OF_TABLE + 1
} tiny_function;

typedef enum {
  LIVE_NONE, LIVE_CLIENT, LIVE_TOPOLOGY, LIVE_BUFFER, LIVE_EVENT, LIVE_EXECUTABLE, LIVE_LOADED_EXECUTABLE, LIVE_ERROR,
  LIVE_MANAGER, LIVE_CONTEXT, LIVE_STREAM, LIVE_TRACKING_EVENT, LIVE_ALIAS, LIVE_SERIALIZED, LIVE_LAYOUT,
  LIVE_RAW_BUFFER, LIVE_ABI_VERSION, LIVE_PROFILER, LIVE_METADATA, LIVE_STORAGE, LIVE_PHASE_COMPILER,
  LIVE_PHASE_BUFFERS, LIVE_MULTI_SLICE, LIVE_COUNT
} tiny_live;
void live_add(tiny_live kind, int delta);
void fault_count(tiny_function function);
PJRT_Error *fault_before(tiny_function function, size_t struct_size, size_t expected_size);
PJRT_Error *fault_event(tiny_function function); /* null: no such fault */
PJRT_Error *error_shown(PJRT_Error *error);      /* one that the caller gets: it is counted until it is destroyed */
#define shown_make(...) error_shown(error_make(__VA_ARGS__))
bool error_is_shown(const PJRT_Error *error);
void event_shown(tiny_function function, PJRT_Event **event); /* the same; a fault takes its place */
bool fault_legacy_errors(void);
void fault_set_legacy_errors(bool on);
void violation(const char *format, ...) PRINTS(1, 2);
const char *function_name(tiny_function function);
/* The first line of an extension's function: a fault, or a struct that is stamped wrongly, ends it. */
#define TINY_GUARD(function, args)                                                                                    \
  do {                                                                                                                \
    SIZED(PJRT_##function##_Args, args);                                                                              \
    PJRT_Error *fault =                                                                                               \
        fault_before(F_##function, (args)->struct_size, PJRT_##function##_Args_STRUCT_SIZE);                          \
    if (fault) return error_shown(fault);                                                                                        \
  } while (0)

/* ---- program.c: the program format "tiny" -------------------------------------------------------------------------*/
typedef enum {
  OP_IDENTITY, OP_ADD, OP_SUB, OP_MUL, OP_NEG, OP_FILL, OP_RECV, OP_CALL, OP_ALL_REDUCE, OP_REPLICA_ID,
  OP_PARTITION_ID, OP_SLEEP, OP_FAIL, OP_SEND, OP_OUTPUT, OP_PAYLOAD, OP_EINSUM
} tiny_opcode;
typedef struct tiny_attr { char *name, *text; } tiny_attr;
typedef struct tiny_op {
  tiny_opcode code;
  int result; /* value number, or -1 */
  int operands[8];
  size_t num_operands;
  int64_t number; /* channel, milliseconds, error code, … */
  double real;
  char *text, *text2;
  tiny_attr *attrs;
  size_t num_attrs;
} tiny_op;
typedef struct tiny_value { char *name; shape shape; } tiny_value;
typedef struct tiny_place { int kind, alias; bytes sharding; bool has_sharding; } tiny_place; /* alias: parameter or -1 */
typedef struct tiny_output { int value; tiny_place place; } tiny_output;
typedef struct tiny_program {
  char *source; /* as text, from "tiny 1" on */
  char *name;
  tiny_value *values; /* parameters come first */
  size_t num_values, num_parameters;
  tiny_place *parameters;
  tiny_op *ops;
  size_t num_ops;
  tiny_output *outputs;
  size_t num_outputs;
} tiny_program;
extern const char *const tiny_memory_kinds[TINY_NUM_MEMORY_KINDS];
PJRT_Error *program_parse(const char *code, size_t size, tiny_program **out);
void program_free(tiny_program *program);
/* Answers a request to compile as the process in Python does: writes what the runtime reads. */
PJRT_Error *program_compile(const bytes *request, bytes *out);
int element_xla_type(PJRT_Buffer_Type type); /* number of xla.PrimitiveType */

/* ---- run.c: the statements of a program on one device ---------------------------------------------------------------*/
typedef struct tiny_meeting tiny_meeting;
/* Asks a function of the framework's, which the execution was given; the bytes are what a receive gets. */
typedef PJRT_Error *(*tiny_ask)(void *arg, const bytes *transfer, bytes *answer);
typedef struct tiny_run {
  const tiny_program *program;
  char **data; /* the bytes of each value: those of parameters are given */
  char *const *outputs;
  int replica, partition;
  tiny_meeting *meeting;
  uint64_t token; /* of the framework's functions */
  tiny_ask ask;
  void *ask_arg;
} tiny_run;
PJRT_Error *program_run(tiny_run *run);
tiny_meeting *meeting_make(size_t participants);
tiny_meeting *meeting_ref(tiny_meeting *meeting);
void meeting_unref(tiny_meeting *meeting);
void meeting_fail(tiny_meeting *meeting, PJRT_Error *borrowed);
bool arithmetic_supports(PJRT_Buffer_Type type);
bool einsum_fits(const tiny_op *op, const tiny_value *values, const shape *result);

/* ---- driver.c: devices that compute on a thread of their own ----------------------------------------------------------*/
void driver_keep_options(pjrt_driver *driver, const PJRT_NamedValue *options, size_t count);
void driver_keep_process_infos(pjrt_driver *driver, const char *text);
void driver_tell(pjrt_driver *driver, named_values *out); /* its options, and what else it was told */
void driver_drain(pjrt_driver *driver);                   /* its work goes on while all is held */
void driver_push(PJRT_Device *device, void (*task)(void *arg), void *arg);
void drivers_hold(bool hold);
extern atomic_llong executions_started; /* what the profiler counts */
/* The topology of a grid of devices. */
PJRT_TopologyDescription *grid_make(int64_t rows, int64_t columns, int64_t processes, bool all_types, bool is_part);
typedef struct tiny_grid { int64_t rows, columns, processes; bool all_types, is_part; } tiny_grid;
tiny_grid grid_of(const PJRT_TopologyDescription *topology);
bool grid_read(const char *name, size_t size, tiny_grid *out);
PJRT_Error *grid_check(const tiny_grid *grid);

/* ---- chain.c, transfers.c, tpu.c -----------------------------------------------------------------------------*/
PJRT_Extension_Base *extensions_chain(bool (*wanted)(PJRT_Extension_Type type));
extern PJRT_CrossHostTransfers_Extension transfers_extension;
extern PJRT_TpuTopology_Extension tpu_topology_extension;
extern PJRT_TpuExecutable_Extension tpu_executable_extension;
extern PJRT_Megascale_Extension megascale_extension;
extern PJRT_MultiSlice_Extension multi_slice_extension;
#define TINY_EXTENSION(extension, kind) \
  .base = {.struct_size = extension##_STRUCT_SIZE, .type = PJRT_Extension_Type_##kind}
void transfers_forget(PJRT_Client *client); /* ends transfers that wait for their other end */

#endif /* TINY_H_ */
