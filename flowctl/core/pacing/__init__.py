"""How much a target takes at once, and how that is shared out: the law behind ``flowctl.paced``.

Pure. :class:`flowctl.core.pacing.law.TargetLaw` decides on samples that one process or many have
pooled; the other modules are its parts and the arithmetic that shares what it decides.
"""
