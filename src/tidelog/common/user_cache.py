"""Where Tidelog keeps what can be made again: scripts that it writes and files that were downloaded."""

from __future__ import annotations

import os
from pathlib import Path


def cache_directory() -> Path:
    """The directory in the user's cache, which may not exist yet; raises RuntimeError for a user without a home."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tidelog"
