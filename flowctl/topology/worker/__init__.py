"""What of a topology runs in its bolts: inputs, collectors, tasks, and what is watched of them."""
