"""CRC-32C, the checksum of record batches.

What always holds: it is the function of the package `crc32c`. Only that package's compiled module is loaded where it is
found: the package itself also imports a command line and the metadata of all installed packages, which costs 20 ms and
2 MB in every process.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crc32c import crc32c as crc32c
else:

    def _compiled():
        package = PathFinder.find_spec("crc32c")
        if "crc32c" not in sys.modules and package is not None and package.submodule_search_locations is not None:
            spec = PathFinder.find_spec("crc32c._crc32c", package.submodule_search_locations)
            if spec is not None and spec.loader is not None:
                module = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(module)
                return module.crc32c
        from crc32c import crc32c

        return crc32c

    crc32c = _compiled()
