"""A person's own model: its folder, learn, judge, predict, export."""
