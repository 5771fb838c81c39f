from pjrt.abi.generated.declarations cimport *

cdef PJRT_Event *event_of(object future) except NULL
cdef PJRT_Event *done_event(PJRT_Error *error) except NULL
cdef PJRT_Event *loan_event_of(object future) except NULL
cdef void *succeeded() noexcept nogil
cdef void *completion_of(PJRT_Event *event) noexcept nogil
cdef void release_completion(void *completion) noexcept nogil
cdef PJRT_Event *event_following(void *completion) noexcept nogil
cdef PJRT_Event *failed_event(PJRT_Error *error) noexcept nogil
cdef int fill_table(PJRT_Api *table) except -1
