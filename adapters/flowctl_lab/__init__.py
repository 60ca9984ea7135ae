"""What shows flowctl and is no part of a job: the simulator of its control law, and the demo.

``flowctl simulate`` and ``flowctl demo`` are here; ``pip install 'flowctl-spark[lab]'``.
"""
