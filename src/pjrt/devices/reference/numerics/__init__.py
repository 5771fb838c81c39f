"""Functions on numpy arrays that numpy lacks, or defines otherwise than StableHLO. They know nothing of programs."""
