"""Optimizations: the same results as without them, bit by bit, but sooner.

The rest of the device is complete without this package. Only ``Evaluator`` imports it, and does not use it with
``optimize=False``. There are two kinds of optimizations:

- ``module_compiler`` changes the steps of a program: it computes constants, inlines small functions and short loops,
  has chains of elementwise steps run in chunks, and those of integers on few elements in ``integer_chain``.
- The other modules have faster kernels for single ops, registered with ``kernels.faster``: ``kernels`` updates in place
  and chooses without a branch, ``sorting`` sorts by keys or by merging.
"""
