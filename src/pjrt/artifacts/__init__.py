"""Saved executables and the compilation cache (floor 5: must not know plugins)."""
