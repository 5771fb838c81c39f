"""Programs of single operations, one module for each chapter of the StableHLO specification."""
