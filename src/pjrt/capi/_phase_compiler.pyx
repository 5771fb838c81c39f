"""The PhaseCompile extension: compiling phase by phase, for the devices of a topology."""

cimport cython

from pjrt.capi._api cimport blob, count, deleter_t, function_t, start, text
from pjrt.capi._gen_abi cimport *
from pjrt.capi._scope cimport Handle, free_scope
from pjrt.capi._topology cimport TopologyCore
from pjrt.capi._values cimport Block

from pjrt.api.checks import expect_all
from pjrt.api.compile_options import CompileOptions
from pjrt.api.errors import InternalError, InvalidArgumentError, PjrtError
from pjrt.api.topology import PartialProgram, PhaseCompiler, check_phases
from pjrt.api.program import Program
from pjrt.capi._documented import documented
from pjrt.capi._program import doubted, prepared


@cython.no_gc_clear
cdef class PhaseCompilerCore(Handle):
    """A ``PJRT_PhaseCompiler`` with the topology that it compiles for."""

    cdef TopologyCore topology
    cdef tuple _phase_names

    @property
    def phase_names(self):
        cdef PJRT_PhaseCompile_Get_PhaseNames_Args args
        cdef size_t index
        if self._phase_names is None:
            start(&args, PJRT_PhaseCompile_Get_PhaseNames_Args_STRUCT_SIZE)
            args.phase_compiler = <PJRT_PhaseCompiler *>self.use()
            self.call(SLOT_PJRT_PhaseCompile_Get_PhaseNames, &args)
            try:
                count(args.num_phase_names, args.phase_names_sizes, "the names of the phases")
                number = count(args.num_phase_names, args.phase_names, "the names of the phases")
                names = tuple(
                    [
                        text(args.phase_names[index], args.phase_names_sizes[index], "the name of a phase")
                        for index in range(number)
                    ]
                )
            finally:
                self._free(args.phase_names, args.phase_names_sizes, args.num_phase_names)
            with cython.critical_section(self):
                if self._phase_names is None:
                    self._phase_names = names
        return self._phase_names

    def run(self, programs, phases, options=None):
        whole = isinstance(programs, (Program, str, bytes, bytearray, memoryview))
        ready = doubt = None
        chosen = CompileOptions.of(options)
        if whole:
            from pjrt.stablehlo import with_partitioning

            ready, doubt = prepared(programs, self.topology.attributes_of_plugin)
            names = check_phases((), phases)
            chosen = with_partitioning(ready, options)
            parts = [PartialProgram(ready.code, str(ready.format), consumer_phases=names[:1])]
        else:
            parts = expect_all(programs, PartialProgram, "a part of a program as pjrt.PartialProgram")
            names = check_phases(parts, phases)
        try:
            return self._run(
                [part.to_proto() for part in parts],
                [name.encode() for name in names],
                chosen.to_proto(),
            )
        except PjrtError as error:
            raise doubted(error, ready, doubt)

    cdef tuple _run(self, list programs, list phases, bytes options):
        cdef PJRT_PhaseCompile_Run_Phase_Args args
        cdef _Strings inputs = _Strings.of(programs)
        cdef _Strings names = _Strings.of(phases)
        cdef size_t index
        start(&args, PJRT_PhaseCompile_Run_Phase_Args_STRUCT_SIZE)
        args.phase_compiler = <PJRT_PhaseCompiler *>self.use()
        args.input_programs = <const char **>inputs.data.data
        args.input_programs_sizes = <size_t *>inputs.sizes.data
        args.num_input_programs = len(programs)
        args.phases_to_run = <const char **>names.data.data
        args.phases_to_run_sizes = <size_t *>names.sizes.data
        args.num_phases_to_run = len(phases)
        args.compile_options = options
        args.compile_options_size = len(options)
        args.topology = <PJRT_TopologyDescription *>self.topology.use()
        self.topology.handle.hold()
        try:
            self.call(SLOT_PJRT_PhaseCompile_Run_Phase, &args)
        finally:
            self.topology.handle.let_go()
        try:
            count(args.num_output_programs, args.output_programs_sizes, "the parts of a program")
            number = count(args.num_output_programs, args.output_programs, "the parts of a program")
            return tuple(
                [_part(blob(args.output_programs[index], args.output_programs_sizes[index], "a part of a program"))
                 for index in range(number)]
            )
        finally:
            self._free(args.output_programs, args.output_programs_sizes, args.num_output_programs)

    cdef int _free(self, const char **buffers, const size_t *sizes, size_t number) except -1:
        cdef PJRT_PhaseCompile_C_Buffers_Destroy_Args args
        cdef function_t free = self.scope.api.find_in_extension(SLOT_PJRT_PhaseCompile_C_Buffers_Destroy)
        if free == NULL or (buffers == NULL and sizes == NULL):
            return 0
        start(&args, PJRT_PhaseCompile_C_Buffers_Destroy_Args_STRUCT_SIZE)
        args.char_buffers = buffers
        args.char_buffer_sizes = sizes
        args.num_char_buffers = number
        with nogil:
            (<deleter_t>free)(&args)
        return 0

    cdef int destroy(self, void *native) except -1:
        cdef PJRT_PhaseCompile_Destroy_Compiler_Args args
        cdef function_t free = self.scope.api.find_in_extension(SLOT_PJRT_PhaseCompile_Destroy_Compiler)
        if free == NULL:
            return 0
        start(&args, PJRT_PhaseCompile_Destroy_Compiler_Args_STRUCT_SIZE)
        args.phase_compiler = <PJRT_PhaseCompiler *>native
        with nogil:
            (<deleter_t>free)(&args)
        return 0


@documented
class PluginPhaseCompiler(PhaseCompilerCore, PhaseCompiler):
    """A compiler of a plugin that stops after each phase (``PJRT_PhaseCompiler``)."""

    __slots__ = ()


cdef class _Strings:
    """Byte strings for a call: the array of pointers and the array of sizes."""

    cdef Block data
    cdef Block sizes
    cdef list keep

    @staticmethod
    cdef _Strings of(list strings):
        cdef _Strings arrays = _Strings.__new__(_Strings)
        cdef bytes string
        cdef size_t index = 0
        arrays.keep = strings
        arrays.data = Block.of(len(strings) * sizeof(char *))
        arrays.sizes = Block.of(len(strings) * sizeof(size_t))
        for string in strings:
            (<const char **>arrays.data.data)[index] = string
            (<size_t *>arrays.sizes.data)[index] = len(string)
            index += 1
        return arrays


def _part(serialized):
    try:
        return PartialProgram.from_proto(serialized)
    except InvalidArgumentError as error:
        raise InternalError(f"the plugin gave a part of a program that cannot be read: {error.message}") from error


def phase_compiler(TopologyCore topology):
    """``TopologyDescription.phase_compiler``."""
    cdef PJRT_PhaseCompile_Get_Compiler_Args args
    # The whole extension is needed: an older one makes buffers, and has no function to free them.
    topology.scope.api.extension(PJRT_Extension_Type_PhaseCompile, PJRT_PhaseCompile_Extension_STRUCT_SIZE)
    start(&args, PJRT_PhaseCompile_Get_Compiler_Args_STRUCT_SIZE)
    topology.call(SLOT_PJRT_PhaseCompile_Get_Compiler, &args)
    if args.phase_compiler == NULL:
        raise InternalError("the plugin gave no phase compiler where one was expected; report it to its vendor")
    compiler = PluginPhaseCompiler()
    (<PhaseCompilerCore>compiler).topology = topology
    (<PhaseCompilerCore>compiler).open(free_scope(topology.scope), <void *>args.phase_compiler, 0)
    return compiler
