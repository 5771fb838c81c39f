"""Compiled programs in files: saved executables and the compilation cache. This package must not know plugins."""
