"""Offloading: models larger than the memory of the device, run stage by stage."""
