"""The parts that all fusions use: recipe, recognition by source, module checks, operators and attention."""
