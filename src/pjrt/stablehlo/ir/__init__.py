"""The inside of programs: modules of MLIR; operations, types, shardings and sizes as plain Python objects."""
