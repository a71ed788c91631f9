"""Pipelines as code: a Python file says what is read, how it is transformed on Spark, and where results go."""
