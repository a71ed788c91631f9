"""Carries out the steps of a switch: stops and starts versions through the registry, and changes outputs.

What always holds: a version is stopped and started only through its process, which is started if necessary; the
position of a version is read from its checkpoint, not from its last report. This module doesn't run versions itself.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.versions.position import checkpoint_dir, position_of
from tidelog.pipeline.versions.registry import Registry
from tidelog.pipeline.versions.registry_rows import OLD_OFFSETS, Run, Switch, has_reached, offsets_from_json
from tidelog.pipeline.versions.run_lock import RunLock
from tidelog.pipeline.versions.switch_outputs import SwitchOutputs
from tidelog.pipeline.versions.switching import Position, is_caught_up

NEW_OFFSETS = "new_offsets"
TOKEN = "token"
OUTPUTS = "outputs"
KEPT = "kept"
STOP_REASON = "it is being switched"
_LOOK_S = 0.05
# A process needs tens of seconds to start Spark and reach its first batch, and a batch may take minutes.
_PATIENCE_S = 600.0

Launch = Callable[[int], None]
"""Starts a background process that runs a version in the role assigned by the registry."""


class SwitchStage:
    """The steps of one switch of a pipeline; see `switching.Stage`."""

    def __init__(
        self,
        registry: Registry,
        outputs: SwitchOutputs,
        launch: Launch,
        *,
        patience_s: float = _PATIENCE_S,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._registry = registry
        self._outputs = outputs
        self._launch = launch
        self._patience_s = patience_s
        self._tell = tell

    def prepare(self, switch: Switch) -> Mapping[str, Any]:
        # Start the process before the old version is stopped, so that readers don't have to wait for it.
        def is_beside() -> bool:
            run = self._registry.running(switch.pipeline, switch.to_version)
            if run is None:
                self._ensure_process(switch, switch.to_version)
            return run is not None and run.is_at_work

        self._wait(is_beside, switch, switch.to_version, "to run beside the old one")
        self._outputs.read(lambda done, total: self._tell(f"{done:,} of {total:,} records"))
        return {TOKEN: uuid.uuid4().hex}

    def stop_old(self, switch: Switch) -> Mapping[str, Any]:
        def is_stopped() -> bool:
            run = self._registry.running(switch.pipeline, switch.from_version)
            if run is not None:
                # A run that completes an unfinished batch of an earlier run must finish that batch first.
                self._stop_when(run, self._position(switch, switch.from_version).is_clean or run.progress.batch_id >= 0)
                return False
            if self._position(switch, switch.from_version).is_clean:
                return True
            self._ensure_process(switch, switch.from_version)
            return False

        self._wait(is_stopped, switch, switch.from_version, "to finish its batch")
        return {OLD_OFFSETS: self._position(switch, switch.from_version).planned}

    def catch_up(self, switch: Switch) -> Mapping[str, Any]:
        wanted = offsets_from_json(switch.data[OLD_OFFSETS])

        def is_stopped() -> bool:
            run = self._registry.running(switch.pipeline, switch.to_version)
            at = self._position(switch, switch.to_version)
            if run is not None:
                self._stop_when(run, has_reached(at.done, wanted) and (at.is_clean or run.progress.batch_id >= 0))
                return False
            if is_caught_up(switch, at):
                return True
            self._ensure_process(switch, switch.to_version)
            return False

        self._wait(is_stopped, switch, switch.to_version, "to catch up with the old version")
        return {NEW_OFFSETS: self._position(switch, switch.to_version).done}

    def write(self, switch: Switch) -> Mapping[str, Any]:
        return {OUTPUTS: self._outputs.write(switch.data[TOKEN])}

    def start_new(self, switch: Switch) -> Mapping[str, Any]:
        def is_live() -> bool:
            run = self._registry.running(switch.pipeline, switch.to_version)
            if run is None:
                self._ensure_process(switch, switch.to_version)
            return run is not None and run.role == "live"

        self._wait(is_live, switch, switch.to_version, "to continue as the live version")
        return {}

    def keep(self, switch: Switch) -> Mapping[str, Any]:
        kept = self._outputs.keep()
        self._outputs.remove_files()
        return {KEPT: kept}

    def undo(self, switch: Switch) -> None:
        self._outputs.undo(switch.data.get(TOKEN, ""))

    def _position(self, switch: Switch, version: int) -> Position:
        return position_of(checkpoint_dir(self._registry.state_dir, switch.pipeline, version))

    def _stop_when(self, run: Run, is_time: bool) -> None:
        if is_time and run.stop_requested_ms is None:
            self._registry.request_stop(run.run_id, STOP_REASON)

    def _ensure_process(self, switch: Switch, version: int) -> None:
        """Make sure that there is a process to run the version when the registry says so."""
        if not RunLock(self._registry.state_dir, switch.pipeline, version, "host").is_held():
            self._tell(f"starting version {version} in the background")
            self._launch(version)

    def _wait(self, is_so: Callable[[], bool], switch: Switch, version: int, what_for: str) -> None:
        deadline_s = time.monotonic() + self._patience_s
        while not is_so():
            if time.monotonic() > deadline_s:
                raise PipelineError(
                    f"version {version} of {switch.pipeline} takes too long {what_for}; see 'tidelog pipeline status "
                    f"{switch.pipeline}', then run this command again, or with --abandon to stay with version "
                    f"{switch.from_version}"
                )
            time.sleep(_LOOK_S)
