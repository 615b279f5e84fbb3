"""Helpers for all fusions. A fusion is a method that replaces a method of a model.

The helpers recognise the original methods by a hash of their source, check submodules, and convert operands.
They also choose between torch's attention and `oxiwarp.attention`.
"""
