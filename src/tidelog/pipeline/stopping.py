"""Stops a run in another process: with a request in the registry, then with SIGTERM, never by force."""

from __future__ import annotations

import os
import signal
import socket
import time

from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.versions.registry import Registry
from tidelog.pipeline.versions.registry_rows import Run

_POLL_S = 0.1
_AFTER_SIGNAL_S = 30.0


def stop_run(registry: Registry, run: Run, timeout_s: float) -> str:
    """Stop a run after its current batch; returns how it ended. A run on this host that doesn't react gets SIGTERM."""
    registry.request_stop(run.run_id)
    if _has_ended(registry, run, timeout_s):
        return registry.run(run.run_id).outcome or "killed"
    if run.host != socket.gethostname():
        raise PipelineError(
            f"{run.pipeline} version {run.version} runs on {run.host} (process {run.pid}) and has not stopped within "
            f"{timeout_s:g} s; it will stop after its batch, or you can stop it there"
        )
    os.kill(run.pid, signal.SIGTERM)
    if _has_ended(registry, run, _AFTER_SIGNAL_S):
        return registry.run(run.run_id).outcome or "killed"
    raise PipelineError(
        f"process {run.pid} of {run.pipeline} version {run.version} does not stop; 'kill -9 {run.pid}' is safe: "
        f"the next run repeats its batch exactly"
    )


def _has_ended(registry: Registry, run: Run, timeout_s: float) -> bool:
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        if registry.run(run.run_id).ended_ms is not None or registry.running(run.pipeline, run.version) is None:
            return True
        time.sleep(_POLL_S)
    return False
