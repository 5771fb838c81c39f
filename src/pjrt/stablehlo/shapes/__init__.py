"""Shapes that only a run decides: sizes, assertions about them, and programs refined for given ones."""
