"""The `tidelog` command: one module a command, registered in `tidelog.cli.main`."""
