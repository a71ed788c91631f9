"""Processing of what a consumer reads: once although records come again, and in parallel although order counts."""
