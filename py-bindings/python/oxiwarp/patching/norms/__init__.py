"""Recognises RMSNorm modules by the output of their original `forward`. The new `forward` of a recognised
module runs one kernel.
"""
