"""Tests of the device API that XLA's own plugin for CPUs does not pass, with the reasons."""

LIBRARY, VERSION = "pjrt_c_api_cpu_plugin.so", "lammps-jax-pjrt-cpu 0.11.2"

_ALIAS = "a call that gives an error to an alias returns this error"

THEIRS = {
    "test_a_buffer_may_be_failed": ("a transfer to a buffer that has failed ends the process", True),
    "test_a_manager_knows_its_buffers": ("a wrong index of a transfer manager ends the process", True),
    "test_a_strided_layout_is_taken_where_it_is_dense": ("strides as a layout on the device are refused", False),
    "test_an_error_travels_through_copies_and_programs": ("an execution makes the code of an error INTERNAL", False),
    "test_a_chain_of_tokens_begins_with_an_empty_array": ("the message has another form", False),
    "test_a_default_device_assignment_of_more_devices_than_there_are": ("it assigns devices that are not there", False),
    "test_an_alias_may_fail": (_ALIAS, False),
    "test_an_alias_that_is_forgotten_fails": (_ALIAS, False),
}
"""The reason by the name of a test, and whether the process ends: then the test is not run."""
