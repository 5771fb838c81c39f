"""The client of a cluster, composed of a client for each of its workers: how they are reached makes no difference."""
