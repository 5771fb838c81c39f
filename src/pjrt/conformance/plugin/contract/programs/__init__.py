"""The requirements of compilation and of executables."""
