"""The requirements of events."""
