"""What `python -m oxiwarp` runs, beside the kernel repository: that is `hub`."""
