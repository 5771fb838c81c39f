from pjrt.abi.generated.declarations cimport PJRT_Program

cdef int check_program_size(const PJRT_Program *program) except -1
cdef object read_program(const PJRT_Program *program, object compiler)
cdef object read_options(const char *data, size_t size)
