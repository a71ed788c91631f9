"""Consumers of one group as processes of their own, each family in its own program, so that they can be killed.

Every program takes its options as one JSON argument and tells in JSON lines what it is given, what it gives up, and
what it reads. Times are of the clock that all processes of a machine share. SIGTERM makes it leave its group.
"""
