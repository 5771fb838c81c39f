"""The requirements of transfers between the host and devices."""
