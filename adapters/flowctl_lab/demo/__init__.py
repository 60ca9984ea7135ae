"""``flowctl demo``: the main job with embedded services, checked at its end.

Reading order: plan (what will happen) → weblog (the input) → work (what bolts do) → job (the
spout) → command, kill (who runs it) → journal, verify (what really happened) → story.
"""
