"""Tools that show flowctl and that no job needs.

These are the simulator of its control law, policies to compare it with, and the demo.  ``flowctl
simulate`` and ``flowctl demo`` are here; ``pip install 'flowctl-spark[lab]'``.
"""
