"""Why it works, or does not: distances, t-SNE, confusion."""
