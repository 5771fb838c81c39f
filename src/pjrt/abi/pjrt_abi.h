/* The PJRT C ABI, stated once and in our own words. Everything that touches one of its structs is compiled
 * against this header; a test holds it against a table of measured facts, field by field.
 *
 * Rules that hold everywhere:
 *  - a caller zeroes an argument struct and stamps struct_size with X_STRUCT_SIZE; fields behind the stamp of the other
 *    side must be neither read nor written, for plugin and caller may be of different versions;
 *  - a function returns null on success, or an error that belongs to the caller;
 *  - strings are pointer and size, not zero-terminated;
 *  - a field marked "out" is written by the function; pointers in it live as long as the handle of the call, unless a
 *    comment says otherwise.
 *
 * Marks of fields, in the comment behind the field and separated by commas. tools/abi_headers.py derives what a layer
 * must know from types and names; a mark states what the names do not.
 *  - out, in out: the function sets the field; it reads and corrects the field;
 *  - null: the caller may leave the pointer null, apart from arrays and bytes whose count is 0;
 *  - count F, inner F: the field F has the number of elements; the number (or the sizes) of the elements' elements;
 *  - values, one, address: the lists are of structs, not of pointers to them; the number of elements is in no field;
 *    the pointer is not followed;
 *  - text, bytes: what a char pointer points to, where the name does not show it;
 *  - new, borrowed, owner F: the receiver destroys the handle; the handle lives as long as that of the call, or of F;
 *  - destroys, deletes, consumes, donates: the handle is gone; its contents are gone; the callee owns it; its contents
 *    may be gone. For functions named Destroy and Delete this follows from the name;
 *  - fills, keeps: the caller's memory is written; it is used until an event of the call is ready;
 *  - once: the callback is called exactly once;
 *  - later: a later version added the field, and those behind it: an older caller's struct ends before it. */
#ifndef PJRT_ABI_H_
#define PJRT_ABI_H_

#include "pjrt_abi/extensions.h"
#include "pjrt_abi/table.h"
#include "generated/sizes.h"

#endif  /* PJRT_ABI_H_ */
