"""`tidelog version`: what is installed, for bug reports."""

from __future__ import annotations

import platform

from tidelog import __version__
from tidelog.cli.app import App
from tidelog.cli.options import Json
from tidelog.cli.output import print_json, print_line


def add_to(app: App) -> None:
    app.command(epilog="Example: tidelog version --json")(version)


def version(json: Json = False) -> None:
    """Print the versions of Tidelog and Python, for bug reports."""
    from tidelog.records import kernel_is_compiled

    compiled = kernel_is_compiled()
    if json:
        print_json(
            {
                "version": __version__,
                "python": platform.python_version(),
                "platform": platform.platform(),
                "kernel_compiled": compiled,
            }
        )
        return
    kernel = "compiled" if compiled else "not compiled (slower; reinstall with a C compiler)"
    print_line(f"tidelog {__version__} (Python {platform.python_version()}, record kernel {kernel})")
