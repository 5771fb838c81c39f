"""Layers at the C ABI: what stands between a framework and any plugin, to see, check, record and disturb their calls.

The layers themselves are C without Python (``pjrt.capi.layer``). This package wraps plugins, and reads and replays what
layers write. It knows no one plugin and no framework.
"""
