"""Tables that pipelines write: directories of Parquet and Delta, PostgreSQL, SQLite."""
