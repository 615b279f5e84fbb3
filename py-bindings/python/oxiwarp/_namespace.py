"""Namespace of the operators in `torch.ops`. The copy that `hub/__init__.py` writes has another namespace."""

NAMESPACE = "oxiwarp"
