"""The discovery of plugins, without importing or opening any of them (part of ``plugins``).

One function for each source, in the order of precedence:

1. ``configuration.find_named``: ``PJRT_NAMES_AND_LIBRARY_PATHS``
2. ``configuration.find_in_file``: tables of the configuration file with a library or a factory
3. the built-in devices
4. ``configuration.find_in_folders``: ``PJRT_PLUGIN_LIBRARY_PATH``
5. ``packages.find_declared``: entry points of the group ``pjrt.plugins``
6. ``wheels.find``: those of vendors, whose facts are in the folder ``vendors``
7. ``packages.find_for_frameworks``: entry points of JAX and PyTorch/XLA, where their packages carry a library
8. ``packages.find_in_namespace``: packages in ``jax_plugins``

Plugins that the user names come before installed ones, so only a plugin that the user names replaces a built-in device.
Of the installed ones, those made for this package come first, then wheels with known facts, then packages that were
made for others. The module ``precedence`` puts the sources together.
"""
