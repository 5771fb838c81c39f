from pjrt.abi.generated.declarations cimport PJRT_Error, PJRT_Error_Code, PJRT_NamedValue

ctypedef int (*implementation_t)(void *args) except -1
ctypedef int (*plugin_implementation_t)(object plugin, void *args) except -1

cdef extern from "pjrt_support/error.h" nogil:
    PJRT_Error *pjrt_error_new(PJRT_Error_Code code, const char *message, size_t size)
    PJRT_Error *pjrt_error_of_text(PJRT_Error_Code code, const char *text)
    void pjrt_error_release(PJRT_Error *error)
    PJRT_Error *pjrt_error_share(PJRT_Error *error)

cdef extern from "pjrt_support/struct_size.h" nogil:
    PJRT_Error *pjrt_check_size(const void *args, size_t expected, const char *name)

cdef void *trampoline(implementation_t implementation) except NULL
cdef void *quiet_trampoline(implementation_t implementation) except NULL
cdef void *notice_trampoline(implementation_t implementation) except NULL
cdef void *plugin_trampoline(int plugin, int number) noexcept
cdef int define_plugin_trampoline(
    int number, plugin_implementation_t implementation, size_t size, const char *name
) except -1
cdef void declare_sizes(const void *table, unsigned number) noexcept nogil
cdef void declare_size(const void *function, size_t size, const char *name) noexcept nogil
cdef int add_plugin(object plugin) except -1
cdef int remove_plugin(int number) except -1
cdef PJRT_Error *native_error(object error) noexcept
cdef object python_error(PJRT_Error_Code code, const char *message, size_t size)
cdef bint has_field(void *args, void *field, size_t size) noexcept nogil
cdef void put(void *slot, void *function) noexcept nogil
cdef void *keep(object thing) noexcept
cdef void drop(void *kept) noexcept nogil
cdef object with_payloads(object error, const PJRT_NamedValue *payloads, size_t number)
cdef object take_error(PJRT_Error *error)
