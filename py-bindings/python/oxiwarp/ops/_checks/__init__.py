"""Checks of the operators' arguments. Operators that call the same check raise the same error messages."""
