"""Namespace of the operators in `torch.ops`. The package copy that `hub/__init__.py` writes has another one."""

NAMESPACE = "oxiwarp"
