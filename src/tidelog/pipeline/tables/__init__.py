"""Tables that pipelines write to: Parquet and Delta directories, PostgreSQL, SQLite."""
