"""Programs for several devices (SPMD): shardings, the groups of collectives, and programs that run unpartitioned."""
