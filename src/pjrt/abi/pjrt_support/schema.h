/* The schema of the ABI: for each function and each callback, the fields of its arguments.
 *
 * The tables are generated from the ABI headers (generated/schema_tables.c and schema_indices.h); this header states what they are made
 * of. A layer that knows nothing of a function can still read all its arguments with them. */
#ifndef PJRT_LAYER_SCHEMA_H_
#define PJRT_LAYER_SCHEMA_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* How a field is read. Arrays and bytes have the number of their elements in another field: see pjrt_field.count. */
typedef enum {
  PJRT_KIND_STRUCT_SIZE,   /* size_t: how much of the struct the caller knows */
  PJRT_KIND_EXTENSIONS,    /* PJRT_Extension_Base *: the chain of extensions of the arguments */
  PJRT_KIND_COUNT,         /* size_t or int: the number of elements of other fields, or of bytes */
  PJRT_KIND_SIGNED,        /* an integer of pjrt_field.size bytes */
  PJRT_KIND_UNSIGNED,      /* the same, unsigned */
  PJRT_KIND_BOOL,
  PJRT_KIND_FLOAT,         /* float or double, by size */
  PJRT_KIND_ENUM,          /* an int with names: pjrt_enums[type] */
  PJRT_KIND_HANDLE,        /* X *: pjrt_handles[type] */
  PJRT_KIND_TEXT,          /* const char * with a number of bytes; without one (count -1) it ends with a zero */
  PJRT_KIND_BYTES,         /* memory with a number of bytes, to read or to fill */
  PJRT_KIND_POINTER,       /* an address that is not looked into: of a device, or of memory of unknown size */
  PJRT_KIND_STRUCT,        /* S *: pjrt_structs[type] */
  PJRT_KIND_STRUCT_VALUE,  /* S, inside this struct: pjrt_structs[type] */
  PJRT_KIND_CALLBACK,      /* a function pointer: pjrt_callbacks[type]; -1 if it is not described */
  PJRT_KIND_USER_DATA,     /* the pointer that is given back to a callback */
  PJRT_KIND_ARRAY,         /* E *: count elements of kind `element`, each of element_size bytes */
  PJRT_KIND_LISTS,         /* E **: count arrays, each of inner_count elements. In PJRT_ExecuteOptions count is -1: as
                              many as devices; in output_lists inner_count is -1: as many as the program has outputs */
  PJRT_KIND_NUM_KINDS
} pjrt_kind;

typedef enum {
  PJRT_IN = 0,      /* the caller sets it */
  PJRT_OUT = 1,     /* the function sets it, or fills the memory that it points to */
  PJRT_IN_OUT = 2,  /* both: a size that is asked for, or that the function corrects */
} pjrt_direction;

/* What the call does with a handle, or with what else a field points to. */
typedef enum {
  PJRT_MARK_NULLABLE = 1 << 0,  /* may be null */
  PJRT_MARK_CREATES = 1 << 1,   /* out: a new object, which the receiver destroys */
  PJRT_MARK_BORROWS = 1 << 2,   /* out: lives as long as the object in pjrt_field.owner (-1: as the plugin) */
  PJRT_MARK_DESTROYS = 1 << 3,  /* in: the handle must not be used afterwards */
  PJRT_MARK_DELETES = 1 << 4,   /* in: the contents go, the handle stays until it is destroyed */
  PJRT_MARK_CONSUMES = 1 << 5,  /* in: the callee owns it from now on */
  PJRT_MARK_DONATES = 1 << 6,   /* in: the contents may go, as in an execution that reuses the memory of its inputs */
  PJRT_MARK_FILLS = 1 << 7,     /* the caller's memory behind the pointer is written */
  PJRT_MARK_KEEPS = 1 << 8,     /* in: the callee uses the memory after the call, until an event of the call is ready */
  PJRT_MARK_ONCE = 1 << 9,      /* a callback or deleter that is called exactly once */
  PJRT_MARK_INLINE = 1 << 10,   /* an array that lies in the struct itself: size / element_size elements */
  PJRT_MARK_LATER = 1 << 11,    /* added by a later version, as are the fields behind it: older structs end before it */
} pjrt_mark;

typedef struct pjrt_field {
  const char *name;
  uint16_t offset;       /* in bytes, from the start of the struct */
  uint16_t size;         /* of the field itself, in bytes */
  uint8_t kind;          /* pjrt_kind */
  uint8_t direction;     /* pjrt_direction */
  uint8_t element;       /* of arrays and lists: the pjrt_kind of an element */
  uint8_t element_size;  /* of arrays and lists: the bytes of an element; of BYTES and TEXT: 1 */
  int16_t type;          /* of handles, enums, structs, callbacks, and of arrays of them: the index of which; else -1 */
  int16_t count;         /* the index of the field with the number of elements, in this struct; -1: one, or unknown */
  int16_t inner_count;   /* of LISTS: the index of the field with the number of elements of each list; of arrays of
                            texts or arrays (TEXT, ARRAY as element): the index of the array of their sizes; else -1 */
  int16_t owner;         /* of what is borrowed: the index of the field with its owner; of user data: its callback */
  int16_t variant;       /* of a member of a union: the value of the enum after the union with which it counts; else -1 */
  uint16_t marks;        /* pjrt_mark, or-ed */
} pjrt_field;

typedef struct pjrt_struct {
  const char *name;
  uint16_t size;        /* up to the end of the last field: what a caller of this version stamps into struct_size */
  uint16_t num_fields;
  bool sized;           /* begins with struct_size */
  const pjrt_field *fields;
} pjrt_struct;

typedef enum {
  PJRT_RESULT_NOTHING,         /* void, though the slot has the type of all others */
  PJRT_RESULT_ERROR,           /* PJRT_Error *, null on success */
  PJRT_RESULT_PROFILER_ERROR,  /* PLUGIN_Profiler_Error *, null on success */
  PJRT_RESULT_OTHER,           /* of FFI handlers: something else, null on success */
} pjrt_result;

/* A function of the table or of an extension; also a callback, whose parameters are laid out as a struct. */
typedef struct pjrt_function {
  const char *name;      /* PJRT_Client_Create */
  int16_t extension;     /* the extension's number; -1: the table */
  int16_t minor;         /* the minor version of the API that added it; 0: the first, or an extension's */
  uint16_t offset;       /* of the slot, in the table or in the extension's struct */
  uint8_t result;        /* pjrt_result */
  int16_t handle;        /* the index of the field with the handle that the function is a method of; -1: none */
  const pjrt_struct *args;
} pjrt_function;

typedef struct pjrt_enum {
  const char *name;
  uint16_t num_names;
  const struct pjrt_enumerator {
    const char *name; /* without the prefix that all names of the enum share */
    int value;
  } *names;
} pjrt_enum;

typedef struct pjrt_handle_kind {
  const char *name;     /* PJRT_Buffer */
  int16_t destroyed_by; /* the function that destroys it; -1: it has an owner, or a deleter comes with it */
} pjrt_handle_kind;

#include "generated/schema_indices.h" /* PJRT_FUNCTION_*, PJRT_CALLBACK_*, PJRT_HANDLE_*, and the number of each */

extern const pjrt_function pjrt_functions[PJRT_NUM_FUNCTIONS];
extern const pjrt_function pjrt_callbacks[PJRT_NUM_CALLBACKS];
extern const pjrt_struct pjrt_structs[PJRT_NUM_STRUCTS];
extern const pjrt_enum pjrt_enums[PJRT_NUM_ENUMS];
extern const pjrt_handle_kind pjrt_handles[PJRT_NUM_HANDLES];

/* Whether the caller's struct has the field: fields behind its struct_size must be neither read nor written. */
static inline bool pjrt_has_field(const pjrt_struct *type, const pjrt_field *field, const void *args) {
  return !type->sized || (size_t)field->offset + field->size <= *(const size_t *)args;
}

static inline const void *pjrt_field_at(const pjrt_field *field, const void *args) {
  return (const char *)args + field->offset;
}

/* The pointer at an address that need not be aligned. */
static inline void *pjrt_pointer_at(const void *at) {
  void *pointer;
  memcpy(&pointer, at, sizeof pointer);
  return pointer;
}

/* The integer at an address, of any size that a field has. */
static inline int64_t pjrt_integer_at(const void *at, size_t size, bool is_signed) {
  int8_t s8;
  int16_t s16;
  int32_t s32;
  int64_t s64;
  switch (size) {
    case 1:
      memcpy(&s8, at, 1);
      return is_signed ? s8 : (uint8_t)s8;
    case 2:
      memcpy(&s16, at, 2);
      return is_signed ? s16 : (uint16_t)s16;
    case 4:
      memcpy(&s32, at, 4);
      return is_signed ? s32 : (int64_t)(uint32_t)s32;
    default:
      memcpy(&s64, at, 8);
      return s64;
  }
}

/* The handle, or another pointer, in a field. */
static inline void *pjrt_pointer_in(const pjrt_field *field, const void *args) {
  return pjrt_pointer_at(pjrt_field_at(field, args));
}

#endif /* PJRT_LAYER_SCHEMA_H_ */
