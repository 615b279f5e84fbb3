"""Checks of the operators' arguments. Operators with the same kind of argument share one check, so their
error messages agree.
"""
