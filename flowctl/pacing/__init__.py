"""``paced``: one limit on a fragile target for everything that calls it, learned, not configured.

:mod:`flowctl.pacing.api` is what users call, :mod:`flowctl.pacing.gate` what each process keeps of
a target.  The law is :mod:`flowctl.core.pacing`; who shares it through Redis asks
:mod:`flowctl.pacing.client`.
"""
