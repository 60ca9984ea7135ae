"""Tuples by reference: parts of a source that bolts read where they run."""
