"""Converts record values to Spark rows, and rows to records."""
