"""Programs for several devices: shardings, the groups of collectives, and programs without a partitioner."""
