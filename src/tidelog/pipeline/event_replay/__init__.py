"""Event replay: a range of a topic, changed, emitted again."""
