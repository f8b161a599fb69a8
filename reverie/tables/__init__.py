"""Many runs: planned, trained, put side by side and beside the paper's figures."""
