"""What the header of the C API requires of a plugin, function by function."""
