"""What people look at: the page, its server, plots, TensorBoard."""
