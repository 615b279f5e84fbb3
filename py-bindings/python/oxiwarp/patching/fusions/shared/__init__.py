"""Parts of blocks that several families of models have."""
