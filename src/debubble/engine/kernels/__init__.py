"""The inner loops, written in the Python subset numba compiles.

Every kernel is a plain function over arrays: ``kernel.py_func`` is what runs for small work, where
loading numba would take longer than the work, and what the tests compare the compiled code with.
"""
