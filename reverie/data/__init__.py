"""From files to batches: sources -> stream -> feed."""
