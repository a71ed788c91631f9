"""What clients share below their own logic: connections, the cluster's metadata, retries, and a thread to run on."""
