"""Versions of a pipeline: the registry of runs, and switching from one version to another."""
