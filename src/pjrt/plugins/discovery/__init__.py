"""Which plugins there are, found without importing or opening any of them (part of ``plugins``).

One module a source. In the order of precedence:

1. ``variables``: ``PJRT_NAMES_AND_LIBRARY_PATHS``
2. ``config_file``: tables with a library or a factory
3. the devices in the box
4. ``directories``: ``PJRT_PLUGIN_LIBRARY_PATH``
5. ``entry_points``: the group ``pjrt.plugins``
6. ``wheels``: those of vendors, whose facts are known here
7. ``entry_points``: the groups of JAX and PyTorch/XLA, where their packages carry a library
8. ``namespace``: packages in ``jax_plugins``

What a user names comes before what is found, and so a device in the box is replaced only by one that the user calls by
its name. Of what is found, what is said for this package comes before what is known of a wheel, and that before what
can be guessed from a package that was made for others.

The order is made in ``precedence``, and ``settings`` tells when there may be something else to find.
"""
