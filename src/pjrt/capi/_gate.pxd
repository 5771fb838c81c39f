cdef bint gate_enter() noexcept nogil
cdef void gate_leave() noexcept nogil
