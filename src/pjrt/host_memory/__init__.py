"""Memory of the host: how arrays lie in it, and how it is shared with others without a copy.

The host runtime (``pjrt.host``) and the ``cpu`` device (``pjrt.devices.xla``) both keep their buffers there. This
package must not know clients and devices.

- ``array``: new arrays that compilers for CPUs can use in place, the order of a dense array's dimensions, and ranges of
  bytes.
- ``external``: memory that numpy does not own, memory of ours that others use, and DLPack.
- ``transfer_manager``: transfers in pieces.
- ``references``: how many hold an array, so that its memory can be used again.
- ``difference``: how far two arrays are apart, and where; ``tolerance``: how far they may be.
"""
