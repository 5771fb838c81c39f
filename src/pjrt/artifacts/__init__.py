"""What was compiled, kept: saved executables and the compilation cache (floor 5: must not know plugins)."""
