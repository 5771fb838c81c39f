/* The rules of the validate layer: the one statement of what is checked, what it means and what the header requires.
 *
 * RULE(identifier, "name", severity, forwarded, "what happened", "what the header requires")
 *
 * The severity says whose fault it is: an ERROR of the framework, a FAULT of the plugin, a LEAK, or something that the
 * header allows and that some plugins do not survive (ADVICE; reported with the option advice=on). "Forwarded" is for the
 * mode "report": whether the call is still made. It is not where the plugin would certainly crash. */
#ifndef PJRT_LAYER_VALIDATE_RULES_H_
#define PJRT_LAYER_VALIDATE_RULES_H_

#include <stdbool.h>

typedef enum { PJRT_SEVERITY_ERROR, PJRT_SEVERITY_FAULT, PJRT_SEVERITY_LEAK, PJRT_SEVERITY_ADVICE } pjrt_severity;

/* clang-format off */
#define PJRT_VALIDATE_RULES(RULE) \
  /* ---- the life of handles */ \
  RULE(USE_AFTER_DESTROY, "use-after-destroy", ERROR, false, \
       "A function is called with a handle that was destroyed.", \
       "A handle must not be used after the function that destroys it was called.") \
  RULE(DOUBLE_DESTROY, "double-destroy", ERROR, false, \
       "A handle is destroyed a second time.", \
       "A handle is destroyed exactly once.") \
  RULE(USE_AFTER_DELETE, "use-after-delete", ERROR, true, \
       "The contents of a buffer or a loaded executable are used after it was deleted.", \
       "PJRT_Buffer_Delete and PJRT_LoadedExecutable_Delete release the contents; the handle may then be asked about " \
       "itself and destroyed.") \
  RULE(USE_AFTER_DONATION, "use-after-donation", ERROR, true, \
       "A buffer is used after an execution or a donation took its memory.", \
       "A donated buffer may only be asked PJRT_Buffer_IsDeleted, deleted and destroyed.") \
  RULE(USE_AFTER_CONSUME, "use-after-consume", ERROR, false, \
       "A handle is used after a call took it over.", \
       "A handle that a function takes over belongs to the plugin and is used once.") \
  RULE(USE_AFTER_CLIENT, "use-after-client", ERROR, true, \
       "An object is used after its client was destroyed.", \
       "Everything that belongs to a client is destroyed before the client.") \
  RULE(UNKNOWN_HANDLE, "unknown-handle", ERROR, false, \
       "A pointer is given as a handle, but the plugin never returned it.", \
       "Handles come from functions of the same plugin.") \
  RULE(WRONG_KIND, "wrong-kind", ERROR, false, \
       "A handle of one kind is given where another kind is expected.", \
       "An argument has the type that the header states.") \
  RULE(FOREIGN_CLIENT, "foreign-client", ERROR, true, \
       "Handles of different clients are given to one call.", \
       "All handles of one call belong to the same client.") \
  RULE(FOREIGN_PLUGIN, "foreign-plugin", ERROR, false, \
       "A handle of another plugin is given.", \
       "Handles come from functions of the same plugin.") \
  RULE(NULL_HANDLE, "null-handle", ERROR, false, \
       "A handle is null where null is not allowed.", \
       "A handle may only be null where the header allows it.") \
  RULE(DESTROYS_BORROWED, "destroys-borrowed", ERROR, false, \
       "A handle is destroyed that another object owns.", \
       "What a client owns, such as its topology, is freed with the client and not by the caller.") \
  RULE(DESTROYED_DURING_CALL, "destroyed-during-call", ERROR, true, \
       "A handle is destroyed while another thread is in a call with it.", \
       "A handle lives until every call with it has returned.") \
  RULE(LEAK, "leak", LEAK, true, \
       "A client is destroyed while objects of it are not.", \
       "The receiver of an object destroys it, before its client.") \
  RULE(CLIENT_LEFT, "client-left", LEAK, true, \
       "The process ends while a client is not destroyed.", \
       "The caller of PJRT_Client_Create destroys the client. Without it a plugin cannot end its threads and its device.") \
  RULE(EVENT_LEFT, "event-left", ADVICE, true, \
       "A client is destroyed while events of it are not.", \
       "The receiver of an event destroys it. The header lets it do so after the client's end.") \
  /* ---- argument structs */ \
  RULE(NULL_ARGUMENTS, "null-arguments", ERROR, false, \
       "A function is called without an argument struct.", \
       "Each function takes a pointer to its argument struct.") \
  RULE(UNREADABLE_MEMORY, "unreadable-memory", ERROR, false, \
       "A pointer points to memory that cannot be read.", \
       "Pointers in arguments point to memory that lives at least as long as the call.") \
  RULE(STRUCT_SIZE_ZERO, "struct-size-zero", ERROR, false, \
       "The struct_size of a struct is zero.", \
       "The caller stamps the size of the struct that it knows into struct_size.") \
  RULE(STRUCT_SIZE_SHORT, "struct-size-short", ERROR, false, \
       "The struct_size of a struct ends before a field that all versions have, or inside of a field.", \
       "The caller stamps the size of the struct that it knows into struct_size.") \
  RULE(STRUCT_SIZE_LONG, "struct-size-long", ERROR, true, \
       "The struct_size of a struct is far longer than any version of it.", \
       "The caller stamps the size of the struct that it knows into struct_size.") \
  RULE(EXTENSION_CHAIN, "extension-chain", ERROR, false, \
       "The chain of extensions of a struct is broken: it cannot be read, is too short, or does not end.", \
       "extension_start is null, or the first link of a chain that ends with null.") \
  RULE(NULL_ARRAY, "null-array", ERROR, false, \
       "A count is greater than zero, but its array is null.", \
       "An array with a count has that number of elements.") \
  RULE(NULL_POINTER, "null-pointer", ERROR, false, \
       "A pointer is null where null is not allowed.", \
       "A pointer may only be null where the header allows it.") \
  RULE(NULL_CALLBACK, "null-callback", ERROR, false, \
       "A callback is null where null is not allowed.", \
       "A callback may only be null where the header allows it.") \
  RULE(ENUM_OUT_OF_RANGE, "enum-out-of-range", ERROR, true, \
       "An argument has a value that its enum does not have.", \
       "The values of an enum are those that the header lists.") \
  RULE(NEGATIVE_SIZE, "negative-size", ERROR, true, \
       "A size, an offset or a dimension is negative.", \
       "Sizes, offsets and dimensions are zero or more.") \
  RULE(NO_PLACE, "no-place", ERROR, true, \
       "A buffer is made with neither a device nor a memory.", \
       "A new buffer is placed by a device or by a memory.") \
  RULE(TWO_PLACES, "two-places", ADVICE, true, \
       "A buffer is made with a device and with a memory that this device does not have.", \
       "Where both are set, the memory counts and the device does not.") \
  RULE(STRIDES_COUNT, "strides-count", ERROR, true, \
       "The number of byte strides is not the number of dimensions.", \
       "byte_strides is null, or has one stride for each dimension.") \
  RULE(NAMED_VALUE, "named-value", ERROR, true, \
       "A named value has no name, or a number of values that does not fit its type.", \
       "A named value has a name; value_size is 1 except for strings and lists.") \
  /* ---- executions */ \
  RULE(ARGUMENT_COUNT, "argument-count", ERROR, true, \
       "An execution has a number of arguments that the program does not take.", \
       "num_args is the number of the program's parameters.") \
  RULE(DEVICE_COUNT, "device-count", ERROR, true, \
       "An execution has lists of arguments for a number of devices that the executable does not have.", \
       "num_devices is the number of the executable's addressable devices, and 1 where execute_device is set.") \
  RULE(DONATED_TWICE, "donated-twice", ERROR, true, \
       "A buffer is donated to an execution that also takes it as another argument.", \
       "A donated buffer is given once.") \
  RULE(DONATED_WITH_REFERENCES, "donated-with-references", ERROR, true, \
       "A buffer with external references is donated.", \
       "While the count of external references is above zero the memory of the buffer stays.") \
  /* ---- events and callbacks */ \
  RULE(EVENT_NOT_READY, "event-not-ready", ERROR, true, \
       "PJRT_Event_Error is called before the event is ready.", \
       "PJRT_Event_Error returns the error of a ready event.") \
  RULE(EVENT_SET_TWICE, "event-set-twice", ERROR, true, \
       "PJRT_Event_Set is called a second time.", \
       "An event is set once.") \
  RULE(EVENT_NOT_SETTABLE, "event-not-settable", ERROR, true, \
       "PJRT_Event_Set is called with an event of the plugin.", \
       "The caller sets events of PJRT_Event_Create.") \
  RULE(EVENT_DESTROYED_UNSET, "event-destroyed-unset", ERROR, true, \
       "An event of PJRT_Event_Create is destroyed before it was set.", \
       "The caller sets an event that it made; what waits for it would wait forever.") \
  RULE(EVENT_DESTROYED_EARLY, "event-destroyed-early", ADVICE, true, \
       "An event is destroyed before it is ready, and nothing was registered on it.", \
       "An event may be destroyed at any time; without it the end of a transfer is unknown.") \
  RULE(EVENT_DESTROYED_IN_CALLBACK, "event-destroyed-in-callback", ADVICE, true, \
       "An event is destroyed inside of its own callback.", \
       "The header allows it; some plugins still use the event after the callback.") \
  RULE(WAIT_IN_CALLBACK, "wait-in-callback", ERROR, true, \
       "A callback of the plugin waits for an event that is not ready.", \
       "Callbacks run on threads of the plugin, which may be the one that the event needs.") \
  RULE(CLIENT_DESTROYED_IN_CALLBACK, "client-destroyed-in-callback", ERROR, true, \
       "A client is destroyed inside of a callback of its plugin.", \
       "A client ends its threads, and so is not destroyed on one of them.") \
  RULE(CALLBACK_TWICE, "callback-twice", FAULT, true, \
       "The plugin calls a callback a second time.", \
       "The callback runs exactly once.") \
  /* ---- memory of the host */ \
  RULE(HOST_MEMORY_CHANGED, "host-memory-changed", ERROR, true, \
       "Memory of the host was changed while the plugin was allowed to read it.", \
       "The memory stays unchanged for as long as its host buffer semantics require.") \
  RULE(HOST_MEMORY_FREED, "host-memory-freed", ERROR, true, \
       "Memory of the host was unmapped while the plugin was allowed to read it.", \
       "The memory lives for as long as its host buffer semantics require.") \
  RULE(DELETED_DURING_READ, "deleted-during-read", ADVICE, true, \
       "A buffer is deleted or destroyed while a copy of it to the host is under way.", \
       "The header allows it; some plugins free the memory at once.") \
  RULE(DESTROYED_WITH_REFERENCES, "destroyed-with-references", ERROR, true, \
       "A buffer is destroyed while it has external references.", \
       "Each PJRT_Buffer_IncreaseExternalReferenceCount is followed by a decrease, before the buffer is destroyed.") \
  RULE(REFERENCES_BELOW_ZERO, "references-below-zero", ERROR, true, \
       "The count of external references is decreased more often than it was increased.", \
       "Each decrease follows an increase.") \
  /* ---- what the plugin returns */ \
  RULE(NULL_RESULT, "null-result", FAULT, true, \
       "The plugin reports success and returns a null handle.", \
       "A function without an error sets its results.") \
  RULE(NULL_RESULT_ARRAY, "null-result-array", FAULT, true, \
       "The plugin returns a count greater than zero with a null array, or an array with a null handle.", \
       "An array with a count has that number of elements.") \
  RULE(UNREADABLE_RESULT, "unreadable-result", FAULT, true, \
       "The plugin returns a pointer to memory that cannot be read.", \
       "What a function returns lives as long as its owner.") \
  RULE(RESULT_OUT_OF_RANGE, "result-out-of-range", FAULT, true, \
       "The plugin returns a value that its enum does not have.", \
       "The values of an enum are those that the header lists.") \
  RULE(NEGATIVE_RESULT, "negative-result", FAULT, true, \
       "The plugin returns a negative dimension.", \
       "Dimensions are zero or more.") \
  RULE(RETURNED_TWICE, "returned-twice", FAULT, true, \
       "The plugin returns a handle as a new object, but this handle is in use for another one.", \
       "A new object has a handle of its own until it is destroyed.") \
  RULE(RESULT_COUNT, "result-count", FAULT, true, \
       "The plugin returns different numbers for the outputs of one executable.", \
       "Types, dimensions and memory kinds of outputs have one entry for each output.") \
  RULE(MISSING_DELETER, "missing-deleter", FAULT, true, \
       "The plugin returns an object that the caller frees by a deleter, without the deleter.", \
       "An object with a deleter comes with both.") \
  RULE(ERROR_WITHOUT_MESSAGE, "error-without-message", FAULT, true, \
       "The plugin returns an error without a message.", \
       "An error has a message.") \
  RULE(ERROR_CODE, "error-code", FAULT, true, \
       "The plugin returns an error whose code is OK, or none of the codes.", \
       "The code of an error is one of absl::Status, and not OK.")
/* clang-format on */

#define PJRT_RULE_ID(identifier, ...) PJRT_RULE_##identifier,
typedef enum { PJRT_VALIDATE_RULES(PJRT_RULE_ID) PJRT_NUM_RULES } pjrt_rule_id;
#undef PJRT_RULE_ID

typedef struct pjrt_rule {
  const char *name;
  pjrt_severity severity;
  bool forwarded;
  const char *description;
  const char *requirement;
} pjrt_rule;

extern const pjrt_rule pjrt_rules[PJRT_NUM_RULES];

#endif /* PJRT_LAYER_VALIDATE_RULES_H_ */
