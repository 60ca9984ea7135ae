"""What an error of a target means: every door asks here, and the answer comes from tables.

:mod:`flowctl.failure.classify` decides what it means, :mod:`flowctl.failure.tables` lists the
errors of client libraries, :mod:`flowctl.failure.headers` reads how long a response asks to be left
alone. :mod:`flowctl.failure.job_fault` says what ends a run at once, and
:mod:`flowctl.failure.texts` how errors are shown.
"""
