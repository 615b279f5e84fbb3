"""Rewrites the source of methods: chains (expressions that one kernel can compute) become calls that run a
kernel."""
