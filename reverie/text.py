"""How numbers, names and lists are written for people."""
