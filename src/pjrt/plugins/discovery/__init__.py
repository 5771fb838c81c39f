"""The discovery of plugins, without importing or opening any of them (part of ``plugins``).

One module for each source, in the order of precedence:

1. ``names_and_paths``: ``PJRT_NAMES_AND_LIBRARY_PATHS``
2. ``config_file``: tables with a library or a factory
3. the built-in devices
4. ``directories``: ``PJRT_PLUGIN_LIBRARY_PATH``
5. ``entry_points``: the group ``pjrt.plugins``
6. ``wheels``: those of vendors, whose facts are in the folder ``vendors``
7. ``entry_points``: the groups of JAX and PyTorch/XLA, where their packages carry a library
8. ``namespace``: packages in ``jax_plugins``

Plugins that the user names come before installed ones, so only a plugin that the user names replaces a built-in device.
Of the installed ones, those made for this package come first, then wheels with known facts, then packages that were
made for others. The module ``precedence`` puts the sources together.
"""
