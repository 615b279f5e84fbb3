"""The decoders of transformers."""
