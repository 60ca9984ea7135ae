"""What shows flowctl and is no part of a job: the simulator of its control law, the policies that
it is compared with, and the demo.

``flowctl simulate`` and ``flowctl demo`` are here; ``pip install 'flowctl-spark[lab]'``.
"""
