"""Fixtures that every test may use: each room's own lie beside its tests."""

pytest_plugins = ["tiny.fixtures"]
