"""Code that all fusions (methods that replace a model's methods) use.

The modules recognise methods by their source, check modules, convert operands, and choose the attention
function.
"""
