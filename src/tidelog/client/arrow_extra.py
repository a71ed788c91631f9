"""pyarrow is an extra: calls that need it check here first, before they fetch or send anything."""

from __future__ import annotations

from tidelog.client.errors import MissingExtraError
from tidelog.common.extras import install_command


def require_pyarrow(call: str) -> None:
    """Raise MissingExtraError, with the command that installs it, if pyarrow is not installed."""
    try:
        import pyarrow  # noqa: F401 - it is there, or it isn't
    except ImportError as error:
        raise MissingExtraError(
            f"{call} needs pyarrow, which can't be imported ({error}): {install_command('arrow')}"
        ) from error
