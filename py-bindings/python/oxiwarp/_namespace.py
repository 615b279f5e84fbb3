"""The namespace of the operators in `torch.ops`: that of a kernel repository's copy is another (`scripts/hub.py`)."""

NAMESPACE = "oxiwarp"
