"""The built-in devices: XLA's CPU compiler, and the reference interpreter. They know neither the C ABI nor the CLI."""
