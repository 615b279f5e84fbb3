"""Commands of `python -m oxiwarp`, except the command `hub`."""
