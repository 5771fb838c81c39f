/* Every function of PJRT_Api in table order, without its PJRT_ prefix. The two that return nothing are listed apart,
 * because a fault cannot be returned from them. */
#ifndef TINY_FUNCTIONS_H_
#define TINY_FUNCTIONS_H_

#define TINY_VOID_FUNCTIONS(X) X(Error_Destroy) X(Error_Message)

#define TINY_ERROR_FUNCTIONS(X)                                                                                       \
  X(Error_GetCode) X(Plugin_Initialize) X(Plugin_Attributes) X(Event_Destroy) X(Event_IsReady) X(Event_Error)        \
  X(Event_Await) X(Event_OnReady) X(Client_Create) X(Client_Destroy) X(Client_PlatformName) X(Client_ProcessIndex)   \
  X(Client_PlatformVersion) X(Client_Devices) X(Client_AddressableDevices) X(Client_LookupDevice)                    \
  X(Client_LookupAddressableDevice) X(Client_AddressableMemories) X(Client_Compile)                                  \
  X(Client_DefaultDeviceAssignment) X(Client_BufferFromHostBuffer) X(DeviceDescription_Id)                           \
  X(DeviceDescription_ProcessIndex) X(DeviceDescription_Attributes) X(DeviceDescription_Kind)                        \
  X(DeviceDescription_DebugString) X(DeviceDescription_ToString) X(Device_GetDescription) X(Device_IsAddressable)    \
  X(Device_LocalHardwareId) X(Device_AddressableMemories) X(Device_DefaultMemory) X(Device_MemoryStats)              \
  X(Memory_Id) X(Memory_Kind) X(Memory_DebugString) X(Memory_ToString) X(Memory_AddressableByDevices)                \
  X(Executable_Destroy) X(Executable_Name) X(Executable_NumReplicas) X(Executable_NumPartitions)                     \
  X(Executable_NumOutputs) X(Executable_SizeOfGeneratedCodeInBytes) X(Executable_GetCostAnalysis)                    \
  X(Executable_OutputMemoryKinds) X(Executable_OptimizedProgram) X(Executable_Serialize)                             \
  X(LoadedExecutable_Destroy) X(LoadedExecutable_GetExecutable) X(LoadedExecutable_AddressableDevices)               \
  X(LoadedExecutable_Delete) X(LoadedExecutable_IsDeleted) X(LoadedExecutable_Execute)                               \
  X(Executable_DeserializeAndLoad) X(LoadedExecutable_Fingerprint) X(Buffer_Destroy) X(Buffer_ElementType)           \
  X(Buffer_Dimensions) X(Buffer_UnpaddedDimensions) X(Buffer_DynamicDimensionIndices) X(Buffer_GetMemoryLayout)      \
  X(Buffer_OnDeviceSizeInBytes) X(Buffer_Device) X(Buffer_Memory) X(Buffer_Delete) X(Buffer_IsDeleted)               \
  X(Buffer_CopyToDevice) X(Buffer_ToHostBuffer) X(Buffer_IsOnCpu) X(Buffer_ReadyEvent) X(Buffer_UnsafePointer)       \
  X(Buffer_IncreaseExternalReferenceCount) X(Buffer_DecreaseExternalReferenceCount)                                  \
  X(Buffer_OpaqueDeviceMemoryDataPointer) X(CopyToDeviceStream_Destroy) X(CopyToDeviceStream_AddChunk)               \
  X(CopyToDeviceStream_TotalBytes) X(CopyToDeviceStream_GranuleSize) X(CopyToDeviceStream_CurrentBytes)              \
  X(TopologyDescription_Create) X(TopologyDescription_Destroy) X(TopologyDescription_PlatformName)                   \
  X(TopologyDescription_PlatformVersion) X(TopologyDescription_GetDeviceDescriptions)                                \
  X(TopologyDescription_Serialize) X(TopologyDescription_Attributes) X(Compile) X(Executable_OutputElementTypes)     \
  X(Executable_OutputDimensions) X(Buffer_CopyToMemory) X(Client_CreateViewOfDeviceBuffer)                           \
  X(Executable_Fingerprint) X(Client_TopologyDescription) X(Executable_GetCompiledMemoryStats) X(Memory_Kind_Id)     \
  X(ExecuteContext_Create) X(ExecuteContext_Destroy) X(Buffer_CopyRawToHost)                                         \
  X(AsyncHostToDeviceTransferManager_Destroy) X(AsyncHostToDeviceTransferManager_TransferData)                       \
  X(Client_CreateBuffersForAsyncHostToDevice) X(AsyncHostToDeviceTransferManager_RetrieveBuffer)                     \
  X(AsyncHostToDeviceTransferManager_Device) X(AsyncHostToDeviceTransferManager_BufferCount)                         \
  X(AsyncHostToDeviceTransferManager_BufferSize) X(AsyncHostToDeviceTransferManager_SetBufferError)                  \
  X(AsyncHostToDeviceTransferManager_AddMetadata) X(Client_DmaMap) X(Client_DmaUnmap)                                \
  X(Client_CreateUninitializedBuffer) X(Client_UpdateGlobalProcessInfo) X(TopologyDescription_Deserialize)           \
  X(Client_CreateAliasBuffer) X(Client_FulfillAliasBuffer) X(LoadedExecutable_GetDeviceAssignment)                   \
  X(Client_CreateErrorBuffer) X(AsyncHostToDeviceTransferManager_TransferLiteral) X(Buffer_CopyRawToHostFuture)      \
  X(Device_PoisonExecution) X(Device_CreateAsyncTrackingEvent) X(AsyncTrackingEvent_Destroy)                         \
  X(Executable_GetCompileOptions) X(Buffer_DonateWithControlDependency) X(Event_Create) X(Event_Set)                 \
  X(Device_GetAttributes) X(Client_Load) X(LoadedExecutable_AddressableDeviceLogicalIds) X(Buffer_Bitcast)           \
  X(Error_ForEachPayload) X(TopologyDescription_Fingerprint) X(Executable_ParameterMemoryKinds)                      \
  X(Device_ClearMemoryStats) X(TopologyDescription_MakeCanonicalShapeForMemorySpace)                                 \
  X(TopologyDescription_GetMemorySpaceKindIds)

#define TINY_FUNCTIONS(X) TINY_VOID_FUNCTIONS(X) TINY_ERROR_FUNCTIONS(X)

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
#define TINY_FUNCTION_ID(name) F_##name,
typedef enum {
  TINY_FUNCTIONS(TINY_FUNCTION_ID) F_COUNT,
  F_LAST_OF_TABLE = F_COUNT - 1,
  TINY_EXTENSION_FUNCTIONS(TINY_FUNCTION_ID) F_ALL
} tiny_function;

#endif /* TINY_FUNCTIONS_H_ */
