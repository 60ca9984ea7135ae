"""How much a target takes at once, and who may send it: the law behind ``flowctl.paced``.

Pure.  :class:`flowctl.core.pacing.law.TargetLaw` decides on samples that one process or many have
pooled; the other modules are its parts and the arithmetic that shares what it decides.
"""
