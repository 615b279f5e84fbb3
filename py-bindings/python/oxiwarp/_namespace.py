"""Name of the operators' namespace in `torch.ops`.

The function `oxiwarp.hub.build` writes a copy of the package, in which this name is different.
"""

NAMESPACE = "oxiwarp"
