"""Event replay: writes a range of a topic's events again, optionally changed."""
