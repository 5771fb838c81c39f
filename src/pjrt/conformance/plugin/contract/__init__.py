"""The requirements of the C API's header, function by function."""
