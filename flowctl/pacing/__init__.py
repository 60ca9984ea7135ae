"""``paced``: one limit on a fragile target for everything that calls it, learned, not configured.

:mod:`flowctl.pacing.api` is what users call, :mod:`flowctl.pacing.gate` the state of a target in
each process.  The law is :mod:`flowctl.core.pacing`; processes that share a target through Redis
use :mod:`flowctl.pacing.client`.
"""
