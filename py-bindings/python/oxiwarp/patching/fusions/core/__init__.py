"""Code that all fusions (rewritten methods) use: recipe, recognition by source, module checks, operators, attention."""
