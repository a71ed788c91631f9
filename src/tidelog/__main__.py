"""`python -m tidelog`: the same as the `tidelog` command."""

from tidelog.cli.main import main

if __name__ == "__main__":
    main()
