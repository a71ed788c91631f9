"""Raw requests to two brokers, and their answers compared field by field."""
