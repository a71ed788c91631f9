"""Versions of a pipeline: the registry of what runs, and the switch from one to another."""
