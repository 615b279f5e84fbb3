"""Name of the operators' namespace in `torch.ops`.

The function `oxiwarp.hub.build` writes a copy of the package with another namespace.
"""

NAMESPACE = "oxiwarp"
