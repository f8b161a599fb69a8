"""One run on disk, from configuration to result."""
