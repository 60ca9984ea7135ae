"""A cluster of several hosts on one machine, and faults: ``make cluster``."""
