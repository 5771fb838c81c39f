"""The data of handles: strings and arrays that a framework reads for as long as a handle lives.

Each method copies a value and sets the two fields, start and length, by which the C API returns it.
"""

from libc.stdint cimport uintptr_t

from pjrt.capi._api cimport Block, NamedValues, int64_block


cdef class HandleData:
    def __cinit__(self):
        self.owners = []

    cdef int add_string(self, value, const char **start, size_t *size) except -1:
        cdef bytes data = value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")
        self.owners.append(data)
        start[0] = data
        size[0] = len(data)

    cdef int add_strings(self, values, const char *const **starts, const size_t **sizes, size_t *number) except -1:
        cdef list strings = list(values)
        cdef size_t index
        cdef Block start_block = Block.of(len(strings) * sizeof(char *))
        cdef Block size_block = Block.of(len(strings) * sizeof(size_t))
        for index in range(<size_t>len(strings)):
            self.add_string(
                strings[index], &(<const char **>start_block.data)[index], &(<size_t *>size_block.data)[index]
            )
        self.owners += (start_block, size_block)
        starts[0] = <const char *const *>start_block.data
        sizes[0] = <size_t *>size_block.data
        number[0] = len(strings)

    cdef int add_pointers(self, list addresses, void *start, size_t *number) except -1:
        """Add an array of pointers; ``start`` points to a field that may be of any type of pointer to pointers."""
        cdef size_t index
        cdef Block block = Block.of(len(addresses) * sizeof(void *))
        for index in range(<size_t>len(addresses)):
            (<void **>block.data)[index] = <void *><uintptr_t>addresses[index]
        self.owners.append(block)
        (<void **>start)[0] = block.data
        number[0] = len(addresses)

    cdef int add_ints(self, values, const int **start, size_t *number) except -1:
        cdef list numbers = list(values)
        cdef size_t index
        cdef Block block = Block.of(len(numbers) * sizeof(int))
        for index in range(<size_t>len(numbers)):
            (<int *>block.data)[index] = numbers[index]
        self.owners.append(block)
        start[0] = <int *>block.data
        number[0] = len(numbers)

    cdef int add_int64s(self, values, const int64_t **start, size_t *number) except -1:
        cdef Block block = int64_block(values)
        self.owners.append(block)
        start[0] = <int64_t *>block.data
        number[0] = len(values)

    cdef int add_named_values(self, values, str what, const PJRT_NamedValue **start, size_t *number) except -1:
        cdef NamedValues native = NamedValues(dict(values), what)
        self.owners.append(native)
        start[0] = native.data
        number[0] = native.size
