"""Memory of the host: how arrays lie in it, and how it is shared with others without a copy.

The host runtime (``pjrt.host``) and the ``cpu`` device (``pjrt.devices.xla``) both keep their buffers there. This
package must not know clients and devices.

- ``aligned``: new arrays that compilers for CPUs can use in place.
- ``layout``: the order of a dense array's dimensions, as numpy and PJRT spell it.
- ``byte_range``: bytes of an array that are read or written in place.
- ``external``: arrays over memory that numpy does not own.
- ``external_reference``: memory of ours that others use.
- ``dlpack``: arrays shared with other libraries.
- ``difference``: how far two arrays are apart, and where; ``tolerance``: how far they may be.
"""
