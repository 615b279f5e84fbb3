"""The models of diffusers, one file for each family."""
