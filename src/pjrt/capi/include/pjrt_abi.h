/* The PJRT C ABI, stated once and in our own words. Everything that touches one of its structs is compiled
 * against this header; a test holds it against a table of measured facts, field by field.
 *
 * Rules that hold everywhere:
 *  - a caller zeroes an argument struct and stamps struct_size with X_STRUCT_SIZE; fields behind the stamp of the other
 *    side must be neither read nor written, for plugin and caller may be of different versions;
 *  - a function returns null on success, or an error that belongs to the caller;
 *  - strings are pointer and size, not zero-terminated;
 *  - a field marked "out" is written by the function; pointers in it live as long as the handle of the call, unless a
 *    comment says otherwise. */
#ifndef PJRT_ABI_H_
#define PJRT_ABI_H_

#include "pjrt_abi/extensions.h"
#include "pjrt_abi/table.h"
#include "pjrt_abi/_gen_sizes.h"

#endif  /* PJRT_ABI_H_ */
