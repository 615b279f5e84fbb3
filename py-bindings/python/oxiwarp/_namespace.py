"""The namespace of the operators in `torch.ops`: that of a kernel repository's copy is another (`hub/__init__.py`)."""

NAMESPACE = "oxiwarp"
