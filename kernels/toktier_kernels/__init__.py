"""A text becomes IDs on the GPU: Triton kernels, their NumPy twins and the engine that runs them.

Importing this package imports nothing; docs/decisions/0009-kernels.md says what the parts guarantee.
"""
