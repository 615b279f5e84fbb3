"""Rewrites methods from their source: chains of operations become calls that run one kernel."""
