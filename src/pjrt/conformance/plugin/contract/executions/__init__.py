"""The requirements of executions."""
