"""One file an API, named by its key, so that a listing is the feature matrix.

A handler translates between messages and the layers below; the logic lives there.
"""

from __future__ import annotations

import importlib
import pkgutil


def load_all() -> None:
    """Import every handler, which registers it; repeated calls cost nothing."""
    for module in pkgutil.iter_modules(__path__):
        if module.name[0] == "k" and module.name[1:].partition("_")[0].isdigit():
            importlib.import_module(f"{__name__}.{module.name}")
