"""Trees of a topology: who waits for what, and how a root learns that all of it is done."""
