"""The browser in which the tests look at pages."""

from browser import window

__all__ = ["window"]
