"""Parts of transformer blocks that several model families share."""
