/* FFI: handlers called from inside compiled programs, and data handed to them through an execute
 * context. */
#ifndef PJRT_ABI_EXTENSIONS_FFI_H_
#define PJRT_ABI_EXTENSIONS_FFI_H_

#include "../base.h"

typedef enum {
  PJRT_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE = 1,
} PJRT_FFI_Handler_TraitsBits;

/* How the runtime handles objects of a registered type; each may be null. */
typedef struct PJRT_FFI_Type_Info {
  void (*deleter)(void *object);  /* null */
  void (*serialize)(void);  /* null */
  void (*deserialize)(void);  /* null */
} PJRT_FFI_Type_Info;

/* With type_id 0 the plugin assigns one; otherwise it must match the one that the name has. */
typedef struct PJRT_FFI_Type_Register_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  const char *type_name;
  size_t type_name_size;
  int64_t type_id;  /* in out */
  PJRT_FFI_Type_Info *type_info;  /* null */
} PJRT_FFI_Type_Register_Args;

typedef struct PJRT_FFI_UserData {
  int64_t type_id;
  void *data;  /* address */
} PJRT_FFI_UserData;

/* The context does not own the data. */
typedef struct PJRT_FFI_UserData_Add_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_ExecuteContext *context;
  PJRT_FFI_UserData user_data;
} PJRT_FFI_UserData_Add_Args;

typedef struct PJRT_FFI_Register_Handler_Args {
  size_t struct_size;
  const char *target_name;
  size_t target_name_size;
  void *handler;  /* address */
  const char *platform_name;
  size_t platform_name_size;
  PJRT_FFI_Handler_TraitsBits traits;
} PJRT_FFI_Register_Handler_Args;

typedef struct PJRT_FFI_Extension {
  PJRT_Extension_Base base;
  PJRT_Error *(*type_register)(PJRT_FFI_Type_Register_Args *args);
  PJRT_Error *(*user_data_add)(PJRT_FFI_UserData_Add_Args *args);
  PJRT_Error *(*register_handler)(PJRT_FFI_Register_Handler_Args *args);
} PJRT_FFI_Extension;

#endif  /* PJRT_ABI_EXTENSIONS_FFI_H_ */
