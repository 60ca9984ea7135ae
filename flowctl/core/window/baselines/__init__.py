"""Published limits, to compare with."""
