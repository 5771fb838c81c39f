"""Vendors' plugins as data: a manifest each, ``NAME.json``, with the wheels that bring the plugin."""
