"""The test of a device, ``pjrt test-device``: whether a device is right, with the smallest program for each error."""
