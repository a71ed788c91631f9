"""What a supervisor tells the brokers that it starts."""

from __future__ import annotations

from typing import Final

SUPERVISOR_PID: Final = "TIDELOG_SUPERVISOR_PID"
"""The environment variable that tells a broker not to outlive its supervisor."""
