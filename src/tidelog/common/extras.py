"""The command that installs an optional package.

It is right however Tidelog was installed, also from a clone: pip and uv keep a Tidelog that is already installed,
without asking an index for it, and add the packages of the extra.
"""

from __future__ import annotations


def install_command(extras: str) -> str:
    """How to add extras, comma-separated, to this installation of Tidelog."""
    return f"pip install 'tidelog[{extras}]'"
