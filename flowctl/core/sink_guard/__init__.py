"""A sink that all bolts share: how many tuples it takes at once without slowing down."""
