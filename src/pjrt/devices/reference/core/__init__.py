"""The interpreter: programs become blocks of steps, and a loop runs the steps."""
