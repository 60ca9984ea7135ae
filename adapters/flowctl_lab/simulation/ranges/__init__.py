"""The simulator's scenarios with bolts that read the source themselves."""
