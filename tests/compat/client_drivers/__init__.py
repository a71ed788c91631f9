"""One driver a client family; each plays the steps of scenario.json through its client, with no special settings."""
