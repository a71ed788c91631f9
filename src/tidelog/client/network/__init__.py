"""The layer that all clients share: connections, the cluster's metadata, retries, and a background thread."""
