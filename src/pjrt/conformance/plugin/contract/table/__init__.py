"""The requirements of a plugin's table, of all argument structs, and of errors."""
