"""Strengths: how much a failed check of a plugin matters, for each check one of three.

A check is required unless the table below says otherwise. It was calibrated by XLA's own plugins: what they do not do
is required only where a comment of the header says it in plain words, or where a framework relies on it.
"""

from __future__ import annotations

import enum
import functools
from fnmatch import fnmatchcase


class Strength(enum.StrEnum):
    """The weight of a failed check."""

    REQUIRED = "required"
    """The header says it, or frameworks rely on it: a plugin that fails such a check is wrong."""
    EXPECTED = "expected"
    """Most plugins do it, and callers are better off; no comment of the header asks for it in plain words."""
    HARDENING = "hardening"
    """Wrong input is refused with an error, and does not end the process. No right program sees the difference."""


HARDENING = (
    "*.wrong", "*.wrong_*", "*.damaged", "*.damaged_*", "*.outside", "*.too_large", "*.too_many", "*.too_many_bytes",
    "*.unknown_*", "*_unknown", "*.below_zero", "*.overflow", "*.not_positive", "*.no_place", "*.null_handle",
    "*.nothing_to_stand_for", "*.strided_too_small", "*.without_layout", "*.after_error", "*.transfer_after_error",
    "*.transfer_after_the_last", "*.execute_after_delete", "buffer.getter_after_delete", "buffer.use_after_delete",
    "buffer.copy_after_delete", "buffer.change_after_delete", "buffer.raw_copy_later_after_delete",
    "buffer.pointer_after_delete", "donation.used_again", "donation.same_buffer_twice",
    "donation.questions_about_the_buffer", "ffi.type_register.twice", "ffi.type_register.another_id",
    "ffi.user_data_add.twice", "arguments.number", "arguments.shape", "arguments.number_of_lists",
    "arguments.another_device", "arguments.deleted", "arguments.execute_device_*", "struct_size.too_short",
    "struct_size.of_programs", "receive.stream_destroyed_early",
    # Element types that came later than many plugins, to which their numbers are numbers of no type.
    "buffer*.element_type*[[]s1]", "buffer*.element_type*[[]u1]", "buffer*.element_type*[[]f6e*",
)  # fmt: skip
"""The names of checks that give a plugin wrong input; ``*`` is any text."""

EXPECTED = (
    # XLA's plugins keep the text of an error on its way through an execution, and make its code INTERNAL.
    "error_value.*", "error_buffer.execute", "donation.of_an_error",
    # The header has no word about alias buffers: whether they take the memory of the buffer that they stand for, and
    # whether the call that gives one an error returns this error.
    "alias_buffer.*",
    # They allocate memory for an error buffer.
    "error_buffer.needs_no_memory",
    # Their unloaded executable is a view of the loaded one, which callers keep for as long.
    "executable.answers_live_as_long_as_it", "loaded_executable.executable_outlives_it",
    "optimized_program.compiles_again",
    # They export marks of protobuf's sections. A framework that loads a plugin apart from itself does not see them.
    "table.symbols",
    # They know structs by their size when the plugin was built, and refuse those of older callers.
    "execute_options.older_struct", "struct_size.of_an_older_caller",
    # The header tells nothing of these: of executions that wait for a device that has failed, of what a deserialized
    # executable can do again, of counts that several threads change, and of memory over ten thousand rounds.
    "collectives.error_of_one_device", "collectives.device_by_device", "poison.earliest_of_two",
    "serialization.serializes_again", "threads.external_references", "leaks.*",
)  # fmt: skip
"""The names of checks of what most plugins do, though the header does not ask for it."""


@functools.cache
def strength_of(check: str) -> Strength:
    """Return the strength of a check by its name; those of the other tiers than ``contract`` are required."""
    names = check, check.partition("[")[0]
    for strength, patterns in ((Strength.HARDENING, HARDENING), (Strength.EXPECTED, EXPECTED)):
        if any(fnmatchcase(name, pattern) for name in names for pattern in patterns):
            return strength
    return Strength.REQUIRED
