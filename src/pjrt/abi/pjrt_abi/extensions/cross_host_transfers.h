/* CrossHostTransfers: buffers sent from a device of one process to a device of another.
 * Two generations live side by side: notifiers with descriptors, and pairs of send and receive with a key. */
#ifndef PJRT_ABI_EXTENSIONS_CROSS_HOST_TRANSFERS_H_
#define PJRT_ABI_EXTENSIONS_CROSS_HOST_TRANSFERS_H_

#include "../layout.h"

/* All arrays have num_buffers entries; the events are filled in and belong to the caller. */
typedef struct PJRT_Transfers_PJRT_Client_CrossHostSendBuffers_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Client *client;
  size_t num_buffers;
  PJRT_Buffer **buffers;
  const int64_t *dst_global_device_ids;
  const int64_t *transfer_keys;
  PJRT_Event **send_events;  /* fills, new */
} PJRT_Transfers_PJRT_Client_CrossHostSendBuffers_Args;

/* All arrays have num_shapes entries; num_dims holds the dimensions of each shape, shape_num_dims how many. */
typedef struct PJRT_Transfers_PJRT_Client_CrossHostReceiveBuffers_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Client *client;
  size_t num_shapes;
  size_t *shape_num_dims;
  const int64_t **num_dims;  /* inner shape_num_dims */
  PJRT_Buffer_Type *element_types;
  PJRT_Buffer_MemoryLayout **layouts;  /* null */
  PJRT_Device *device;
  const int64_t *src_global_device_ids;
  const int64_t *transfer_keys;
  PJRT_Buffer **buffers;  /* fills, new */
} PJRT_Transfers_PJRT_Client_CrossHostReceiveBuffers_Args;

typedef void (*PJRT_Transfers_CrossHostOnCanceledCallback)(PJRT_Error *error /* consumes */, void *user_arg);

/* Lets the receiver cancel the transfer; the sender gets the reason. */
typedef void (*PJRT_Transfers_CrossHostSendCancelNotifier)(
    const char *serialized_descriptor, size_t serialized_descriptor_size, PJRT_Error_Code reason,
    const char *error_message, size_t error_message_size,
    PJRT_Transfers_CrossHostOnCanceledCallback on_canceled, void *on_canceled_user_arg, void *user_arg);

/* Called once, when the receiving buffers have descriptors, or with an error. */
typedef void (*PJRT_Transfers_CrossHostRecvNotifier)(
    PJRT_Error *error /* consumes */, const char **serialized_descriptors, size_t *descriptors_sizes,
    size_t num_descriptors, void *user_arg, PJRT_Transfers_CrossHostSendCancelNotifier cancel_notifier,
    void *cancel_notifier_user_arg);

typedef struct PJRT_Transfers_CrossHostRecvNotifierInfo {
  void *user_arg;
  PJRT_Transfers_CrossHostRecvNotifier notifier;  /* once */
} PJRT_Transfers_CrossHostRecvNotifierInfo;

typedef struct PJRT_Transfers_PJRT_Client_MakeCrossHostReceiveBuffers_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Client *client;
  size_t num_shapes;
  size_t *shape_num_dims;  /* count num_shapes */
  const int64_t **num_dims;  /* count num_shapes, inner shape_num_dims */
  PJRT_Buffer_Type *element_types;  /* count num_shapes */
  PJRT_Buffer_MemoryLayout **layouts;  /* null, count num_shapes */
  PJRT_Device *device;
  PJRT_Transfers_CrossHostRecvNotifierInfo notifier;
  PJRT_Buffer **buffers;  /* fills, new */
  size_t num_buffers;  /* out */
} PJRT_Transfers_PJRT_Client_MakeCrossHostReceiveBuffers_Args;

typedef void (*PJRT_Transfers_CrossHostRemoteSendCallback)(PJRT_Error *error /* consumes */, bool sends_were_enqueued, void *user_arg);

typedef struct PJRT_Transfers_CrossHostRemoteSendCallbackInfo {
  void *user_arg;
  PJRT_Transfers_CrossHostRemoteSendCallback on_done;  /* once */
} PJRT_Transfers_CrossHostRemoteSendCallbackInfo;

typedef void (*PJRT_Transfers_DescriptorDestructor)(char **descriptor_data, size_t *descriptor_size);

/* The event is set when the descriptor is available. The plugin destroys the event, and frees the descriptor by the
 * destructor. */
typedef struct PJRT_Transfers_PJRT_Buffer_CopyToRemoteDevice_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Buffer *buffer;
  PJRT_Event *event;  /* consumes */
  char **serialized_descriptor;  /* one */
  size_t *serialized_descriptor_size;  /* one */
  PJRT_Transfers_CrossHostRemoteSendCallbackInfo on_done;
  PJRT_Transfers_DescriptorDestructor descriptor_destructor;  /* null */
} PJRT_Transfers_PJRT_Buffer_CopyToRemoteDevice_Args;

typedef struct PJRT_CrossHostTransfers_Extension {
  PJRT_Extension_Base base;
  PJRT_Error *(*PJRT_Transfers_PJRT_Client_MakeCrossHostReceiveBuffers)(
      PJRT_Transfers_PJRT_Client_MakeCrossHostReceiveBuffers_Args *args);
  void (*PJRT_Transfers_PJRT_Buffer_CopyToRemoteDevice)(PJRT_Transfers_PJRT_Buffer_CopyToRemoteDevice_Args *args);
  PJRT_Error *(*PJRT_Transfers_PJRT_Client_CrossHostReceiveBuffers)(
      PJRT_Transfers_PJRT_Client_CrossHostReceiveBuffers_Args *args);
  PJRT_Error *(*PJRT_Transfers_PJRT_Client_CrossHostSendBuffers)(
      PJRT_Transfers_PJRT_Client_CrossHostSendBuffers_Args *args);
} PJRT_CrossHostTransfers_Extension;

#endif  /* PJRT_ABI_EXTENSIONS_CROSS_HOST_TRANSFERS_H_ */
