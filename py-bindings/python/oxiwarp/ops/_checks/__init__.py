"""Checks of the operators' arguments. Operators that share a check share its error messages."""
