"""IREE's compiler and runtime as a device: the extra ``pjrt[iree]``.

IREE compiles each program to one module (``.vmfb``), which its runtime runs on processors, and on GPUs by Vulkan, CUDA
and HIP. Its modules are imported when they are needed, because they are optional and take a while.
"""
