"""Tasks in, a classifier out; checkpoints and events."""
