/* Megascale: TPU slices that compute together over a data center's network. The structs have no extension_start. */
#ifndef PJRT_ABI_EXTENSIONS_MEGASCALE_H_
#define PJRT_ABI_EXTENSIONS_MEGASCALE_H_

#include "collectives.h"
#include "multi_slice.h"

typedef struct PJRT_Megascale_ClientContext PJRT_Megascale_ClientContext;
typedef struct PJRT_Megascale_ErrorAggregator PJRT_Megascale_ErrorAggregator;
typedef struct PJRT_Megascale_ErrorDigest PJRT_Megascale_ErrorDigest;
typedef struct PJRT_Megascale_SerializedAddresses PJRT_Megascale_SerializedAddresses;
typedef struct PJRT_Megascale_SerializedError PJRT_Megascale_SerializedError;

/* The part of a client that speaks to the other slices. It belongs to the caller. */
typedef struct PJRT_Megascale_CreateClientContextFromPjRtClient_Args {
  size_t struct_size;
  PJRT_Client *client;
  PJRT_Megascale_ClientContext *client_context;  /* out */
} PJRT_Megascale_CreateClientContextFromPjRtClient_Args;

typedef struct PJRT_Megascale_CreateDefaultClientContext_Args {
  size_t struct_size;
  PJRT_Megascale_ClientContext *client_context;  /* out */
} PJRT_Megascale_CreateDefaultClientContext_Args;

typedef struct PJRT_Megascale_DeleteClientContext_Args {
  size_t struct_size;
  PJRT_Megascale_ClientContext *client_context;
} PJRT_Megascale_DeleteClientContext_Args;

/* A number of slices of a topology, for compiling on a machine without them. The configuration belongs to the
 * caller. */
typedef struct PJRT_Megascale_CreateAoTConfig_Args {
  size_t struct_size;
  const PJRT_TopologyDescription *topology;
  int32_t num_slices;
  PJRT_MultiSlice_Config *multi_slice_config;  /* out */
} PJRT_Megascale_CreateAoTConfig_Args;

/* The same on the machines of the slices: with the addresses of all (a serialized EndpointAddresses) and the
 * network between them (a serialized DCNTopology). */
typedef struct PJRT_Megascale_CreateMultiSliceConfig_Args {
  size_t struct_size;
  const PJRT_TopologyDescription *topology;
  int32_t num_slices;
  int32_t local_slice_id;
  int32_t local_host_id;
  const char *endpoint_addresses;  /* bytes */
  int32_t endpoint_addresses_size;
  const char *dcn_topology;  /* bytes */
  int32_t dcn_topology_size;
  PJRT_Megascale_ClientContext *client_context;
  PJRT_MultiSlice_Config *multi_slice_config;  /* out */
} PJRT_Megascale_CreateMultiSliceConfig_Args;

/* Only the first two fields are public. Plugins since 0.116 expect 32 bytes here: do not call it. */
typedef struct PJRT_Megascale_ClientContext_Initialize_Args {
  size_t struct_size;
  PJRT_Megascale_ClientContext *client_context;
} PJRT_Megascale_ClientContext_Initialize_Args;

typedef struct PJRT_Megascale_ClientContext_UnblockPendingWork_Args {
  size_t struct_size;
  PJRT_Megascale_ClientContext *client_context;
  int32_t launch_id;
  int64_t expire_after_ms;
} PJRT_Megascale_ClientContext_UnblockPendingWork_Args;

typedef struct PJRT_Megascale_ClientContext_MegascalePort_Args {
  size_t struct_size;
  PJRT_Megascale_ClientContext *client_context;
  int32_t port;  /* out */
} PJRT_Megascale_ClientContext_MegascalePort_Args;

/* Arrays of addresses and, where they are not null, of slices and of positions in a slice. It has no struct_size. */
typedef struct PJRT_Megascale_ProcessesInfo {
  const char **addresses;  /* inner address_sizes */
  size_t *address_sizes;
  size_t num_addresses;
  int32_t *slice_indexes;  /* null */
  size_t num_slice_indexes;
  int32_t *per_slice_indexes;  /* null */
  size_t num_per_slice_indexes;
  int32_t num_devices_per_process;
} PJRT_Megascale_ProcessesInfo;

typedef struct PJRT_Megascale_CreateMegascaleCollectives_Args {
  size_t struct_size;
  PJRT_Megascale_ClientContext *client_context;
  PJRT_Megascale_ProcessesInfo *processes_info;
  const char *dcn_topology;  /* bytes */
  size_t dcn_topology_size;
  PJRT_Collectives *collectives;  /* out */
} PJRT_Megascale_CreateMegascaleCollectives_Args;

/* A device of a slice has one number among the devices of all slices. */
typedef struct PJRT_Megascale_DeviceId_To_MegascaleId_Args {
  size_t struct_size;
  int32_t slice_id;
  int32_t per_slice_device_id;
  int64_t megascale_id;  /* out */
} PJRT_Megascale_DeviceId_To_MegascaleId_Args;

typedef struct PJRT_Megascale_MegascaleId_To_DeviceId_Args {
  size_t struct_size;
  int64_t megascale_id;
  int32_t slice_id;  /* out */
  int32_t per_slice_device_id;  /* out */
} PJRT_Megascale_MegascaleId_To_DeviceId_Args;

typedef void (*PJRT_Megascale_ErrorHandler)(
    const char *serialized_error, size_t serialized_error_size, void *user_data);

typedef struct PJRT_Megascale_RegisterErrorHandler_Args {
  size_t struct_size;
  const char *handler_name;
  size_t handler_name_size;
  PJRT_Megascale_ErrorHandler handler;
  void *user_data;
} PJRT_Megascale_RegisterErrorHandler_Args;

typedef struct PJRT_Megascale_UnregisterErrorHandler_Args {
  size_t struct_size;
  const char *handler_name;
  size_t handler_name_size;
} PJRT_Megascale_UnregisterErrorHandler_Args;

/* Gathers the errors of all workers, and finds which of them came first. */
typedef struct PJRT_Megascale_ErrorAggregator_Create_Args {
  size_t struct_size;
  const char *app_type;
  size_t app_type_size;
  PJRT_Megascale_ErrorAggregator *aggregator;  /* out */
} PJRT_Megascale_ErrorAggregator_Create_Args;

typedef struct PJRT_Megascale_ErrorAggregator_Delete_Args {
  size_t struct_size;
  PJRT_Megascale_ErrorAggregator *aggregator;
} PJRT_Megascale_ErrorAggregator_Delete_Args;

typedef struct PJRT_Megascale_ErrorDigest_Delete_Args {
  size_t struct_size;
  PJRT_Megascale_ErrorDigest *digest;
} PJRT_Megascale_ErrorDigest_Delete_Args;

typedef struct PJRT_Megascale_ErrorAggregator_AddError_Args {
  size_t struct_size;
  PJRT_Megascale_ErrorAggregator *aggregator;
  const char *worker_id;
  size_t worker_id_size;
  const char *serialized_error;
  size_t serialized_error_size;
} PJRT_Megascale_ErrorAggregator_AddError_Args;

typedef struct PJRT_Megascale_ErrorAggregator_ProcessAndShutdown_Args {
  size_t struct_size;
  PJRT_Megascale_ErrorAggregator *aggregator;
  PJRT_Megascale_ErrorDigest *digest;  /* out */
} PJRT_Megascale_ErrorAggregator_ProcessAndShutdown_Args;

typedef struct PJRT_Megascale_ErrorAggregator_LogErrorDigest_Args {
  size_t struct_size;
  PJRT_Megascale_ErrorAggregator *aggregator;
  PJRT_Megascale_ErrorDigest *digest;
} PJRT_Megascale_ErrorAggregator_LogErrorDigest_Args;

typedef struct PJRT_Megascale_ErrorAggregator_Size_Args {
  size_t struct_size;
  PJRT_Megascale_ErrorAggregator *aggregator;
  size_t size;  /* out */
} PJRT_Megascale_ErrorAggregator_Size_Args;

typedef struct PJRT_Megascale_ErrorAggregator_Active_Args {
  size_t struct_size;
  PJRT_Megascale_ErrorAggregator *aggregator;
  bool active;  /* out */
} PJRT_Megascale_ErrorAggregator_Active_Args;

/* The arrays of addresses live until the deleter is called. */
typedef struct PJRT_Megascale_GetInterfaceAddressesHelper_Args {
  size_t struct_size;
  const char *megascale_port_name;
  size_t megascale_port_name_size;
  int32_t megascale_port;
  const char **interface_prefixes;
  const size_t *interface_prefixes_sizes;
  size_t num_interface_prefixes;
  bool use_all_interfaces;
  bool limit_to_process_numa_local_interfaces;
  const char **serialized_addresses;  /* out, count num_addresses */
  size_t *serialized_addresses_sizes;  /* out, count num_addresses */
  size_t num_addresses;  /* out */
  PJRT_Megascale_SerializedAddresses *addresses;  /* out */
  void (*addresses_deleter)(PJRT_Megascale_SerializedAddresses *addresses);  /* out */
} PJRT_Megascale_GetInterfaceAddressesHelper_Args;

/* The error lives until the deleter is called. */
typedef struct PJRT_Megascale_GetOrCreateRuntimeError_Args {
  size_t struct_size;
  int32_t error_type;
  int64_t start_time_nanos;
  int32_t status_code;
  const char *status_message;
  size_t status_message_size;
  int32_t launch_id;
  bool has_unrecoverable_error_type;
  int32_t unrecoverable_error_type;
  const char *serialized_error;  /* out */
  size_t serialized_error_size;  /* out */
  bool is_new_error;  /* out */
  PJRT_Megascale_SerializedError *error;  /* out */
  void (*error_deleter)(PJRT_Megascale_SerializedError *error);  /* out */
} PJRT_Megascale_GetOrCreateRuntimeError_Args;

/* The functions of multi-slice configurations have moved to the MultiSlice extension: here they are null in newer
 * plugins. */
typedef struct PJRT_Megascale_Extension {
  PJRT_Extension_Base base;
  PJRT_Error *(*create_client_context_from_pjrt_client)(PJRT_Megascale_CreateClientContextFromPjRtClient_Args *args);
  PJRT_Error *(*create_default_client_context)(PJRT_Megascale_CreateDefaultClientContext_Args *args);
  PJRT_Error *(*delete_client_context)(PJRT_Megascale_DeleteClientContext_Args *args);
  PJRT_Error *(*create_aot_config)(PJRT_Megascale_CreateAoTConfig_Args *args);
  PJRT_Error *(*create_multi_slice_config)(PJRT_Megascale_CreateMultiSliceConfig_Args *args);
  void *delete_multi_slice_config;
  void *multi_slice_config_num_slices;
  void *multi_slice_config_slice_id;
  void *multi_slice_config_get_num_devices_per_slice;
  void *multi_slice_config_serialize;
  PJRT_Error *(*client_context_initialize)(PJRT_Megascale_ClientContext_Initialize_Args *args);
  PJRT_Error *(*client_context_unblock_pending_work)(PJRT_Megascale_ClientContext_UnblockPendingWork_Args *args);
  PJRT_Error *(*client_context_megascale_port)(PJRT_Megascale_ClientContext_MegascalePort_Args *args);
  PJRT_Error *(*create_megascale_collectives)(PJRT_Megascale_CreateMegascaleCollectives_Args *args);
  PJRT_Error *(*device_id_to_megascale_id)(PJRT_Megascale_DeviceId_To_MegascaleId_Args *args);
  PJRT_Error *(*megascale_id_to_device_id)(PJRT_Megascale_MegascaleId_To_DeviceId_Args *args);
  PJRT_Error *(*register_megascale_error_handler)(PJRT_Megascale_RegisterErrorHandler_Args *args);
  PJRT_Error *(*unregister_megascale_error_handler)(PJRT_Megascale_UnregisterErrorHandler_Args *args);
  PJRT_Error *(*error_aggregator_create)(PJRT_Megascale_ErrorAggregator_Create_Args *args);
  PJRT_Error *(*error_aggregator_delete)(PJRT_Megascale_ErrorAggregator_Delete_Args *args);
  PJRT_Error *(*error_digest_delete)(PJRT_Megascale_ErrorDigest_Delete_Args *args);
  PJRT_Error *(*error_aggregator_add_error)(PJRT_Megascale_ErrorAggregator_AddError_Args *args);
  PJRT_Error *(*error_aggregator_process_and_shutdown)(PJRT_Megascale_ErrorAggregator_ProcessAndShutdown_Args *args);
  PJRT_Error *(*error_aggregator_log_error_digest)(PJRT_Megascale_ErrorAggregator_LogErrorDigest_Args *args);
  PJRT_Error *(*error_aggregator_size)(PJRT_Megascale_ErrorAggregator_Size_Args *args);
  PJRT_Error *(*error_aggregator_active)(PJRT_Megascale_ErrorAggregator_Active_Args *args);
  PJRT_Error *(*get_interface_addresses_helper)(PJRT_Megascale_GetInterfaceAddressesHelper_Args *args);
  PJRT_Error *(*get_or_create_runtime_error)(PJRT_Megascale_GetOrCreateRuntimeError_Args *args);
} PJRT_Megascale_Extension;

#endif  /* PJRT_ABI_EXTENSIONS_MEGASCALE_H_ */
