"""Namespace of the operators in `torch.ops`. The copy of a kernel repository has another one (`hub/__init__.py`)."""

NAMESPACE = "oxiwarp"
