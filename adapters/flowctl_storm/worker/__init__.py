"""The part of a topology that runs in its bolts: inputs, collectors, tasks, and their watches."""
