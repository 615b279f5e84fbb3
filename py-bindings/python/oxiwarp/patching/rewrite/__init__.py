"""Rewrites the source of a model's methods. Each *chain*, an expression that one kernel can compute, becomes a call of
a function that runs this kernel.
"""
