"""Values of records as rows of Spark's, and rows as records."""
