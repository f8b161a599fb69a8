"""What tests share: small experiments, real files, computations by hand, a browser."""
