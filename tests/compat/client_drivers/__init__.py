"""One driver a client family; each turns the steps of scenario.json into calls of its client, with no special settings."""
