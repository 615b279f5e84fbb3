"""Commands of `python -m oxiwarp`, except `hub`, which builds the kernel repository for Hugging Face."""
