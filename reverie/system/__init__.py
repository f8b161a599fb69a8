"""Files that are whole or not there, locks, signals, and where a figure comes from."""
