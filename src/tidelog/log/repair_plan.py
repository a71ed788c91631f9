"""Works out how to repair a partition's files, by reading all of them and changing none.

What always holds: every byte of every log file is accounted for, either kept or removed with a reason; batches keep
their offsets, and lost offsets are covered by an empty batch, as compaction leaves it, so that none is ever reused and
the log has no gap. It says what to do; `repair` does it.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import field, replace
from pathlib import Path

from tidelog.common.checks import offset_in_file_name
from tidelog.common.light_dataclass import dataclass
from tidelog.log.checkpoints import LEADER_EPOCH_FILE, PARTITION_METADATA_FILE, read_partition_metadata
from tidelog.log.damage import checked_header, is_unwritten, next_good_batch
from tidelog.log.epochs import LeaderEpochs
from tidelog.log.errors import CorruptCheckpointError, CorruptSnapshotError
from tidelog.log.index import RELATIVE_OFFSET_MAX, OffsetIndex, TimeIndex
from tidelog.log.inspect import epochs_agree, looks_compacted, verify_indexes
from tidelog.log.producer_snapshot import SNAPSHOT_SUFFIX, decode_snapshot
from tidelog.log.segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX
from tidelog.records import BatchHeader, CorruptBatchError, check_crc, parse_header

UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class Action:
    """One step, planned or done, in words and numbers; -1 means unknown."""

    path: Path
    what: str
    reason: str
    position: int = UNKNOWN
    size_bytes: int = 0
    first_lost_offset: int = UNKNOWN
    last_lost_offset: int = UNKNOWN
    # As far as the damaged header tells.
    lost_records_count: int = UNKNOWN


@dataclass(frozen=True, slots=True)
class Kept:
    """Bytes that stay as they are."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Moved:
    """A batch that is kept with a corrected base offset: its CRC does not cover that field."""

    start: int
    end: int
    base_offset: int


@dataclass(frozen=True, slots=True)
class Covered:
    """Lost offsets, to be covered by an empty batch."""

    first_offset: int
    last_offset: int
    leader_epoch: int
    timestamp: int


Piece = Kept | Moved | Covered


@dataclass(slots=True)
class SegmentPlan:
    path: Path
    base_offset: int
    size_bytes: int
    pieces: list[Piece] = field(default_factory=list)
    has_batches: bool = False
    is_index_false: bool = False

    @property
    def is_unchanged(self) -> bool:
        return self.pieces == ([Kept(0, self.size_bytes)] if self.size_bytes else [])

    @property
    def cut_position(self) -> int | None:
        """Where to truncate, if only the start of the file is kept."""
        match self.pieces:
            case []:
                return 0
            case [Kept(start=0, end=end)]:
                return end
        return None


@dataclass(slots=True)
class PartitionPlan:
    directory: Path
    actions: list[Action] = field(default_factory=list)
    segments: list[SegmentPlan] = field(default_factory=list)
    # Files that go as they are, segments that hold nothing among them.
    taken_out: list[Path] = field(default_factory=list)
    epochs: list[tuple[int, int]] = field(default_factory=list)
    are_epochs_false: bool = False
    start_offset: int = 0
    end_offset: int = 0
    is_compacted: bool = False

    @property
    def is_needed(self) -> bool:
        return bool(self.actions)


def plan_repair(directory: Path, *, flushed_offset: int = 0, log_start_offset: int | None = None) -> PartitionPlan:
    """Read all files of a partition. Offsets below `flushed_offset` were once on disk: none of them is reused."""
    plan = PartitionPlan(directory, is_compacted=looks_compacted(directory))
    paths = _log_files(plan)
    lost = _lost_files(directory, {base_offset for base_offset, _ in paths})
    if log_start_offset is None and lost:
        log_start_offset = min(base_offset for base_offset, _ in lost)
    lost_offset = max((end_offset for _, end_offset in lost), default=0)
    is_end_known = lost_offset <= flushed_offset
    _Walk(plan, paths, max(flushed_offset, lost_offset), log_start_offset, is_end_known=is_end_known).run()
    _check_indexes(plan)
    _check_epochs(plan)
    _check_other_files(plan)
    return plan


def _log_files(plan: PartitionPlan) -> list[tuple[int, Path]]:
    found = []
    for path in sorted(plan.directory.glob("*" + LOG_SUFFIX)):
        base_offset = offset_in_file_name(path.stem)
        if base_offset is None:
            continue
        if path.is_file():
            found.append((base_offset, path))
        else:
            plan.taken_out.append(path)
            plan.actions.append(Action(path, "set aside", "it is not a file"))
    return found


def _lost_files(directory: Path, bases: set[int]) -> list[tuple[int, int]]:
    """Missing logs whose indexes still exist: where each started, and the least offset at which it ended."""
    found = []
    for kind, suffix in ((OffsetIndex, INDEX_SUFFIX), (TimeIndex, TIME_INDEX_SUFFIX)):
        for path in sorted(directory.glob("*" + suffix)):
            base_offset = offset_in_file_name(path.stem)
            if base_offset is None or base_offset in bases or not path.is_file():
                continue
            index = kind(path, base_offset, 0)
            last_offset = base_offset
            for entry in index.entries():
                offset = entry[0] if kind is OffsetIndex else entry[1]
                if offset < last_offset:
                    break  # the unused rest of an index that was still written to
                last_offset = offset
            index.drop()
            found.append((base_offset, last_offset + 1))
    return found


class _Walk:
    """All log files, in order."""

    def __init__(
        self,
        plan: PartitionPlan,
        paths: list[tuple[int, Path]],
        flushed_offset: int,
        log_start_offset: int | None,
        *,
        is_end_known: bool,
    ) -> None:
        self._plan = plan
        self._paths = paths
        self._flushed_offset = flushed_offset
        self._log_start_offset = log_start_offset if paths else log_start_offset or 0
        self._is_end_known = is_end_known
        self._next_offset = paths[0][0] if paths else max(flushed_offset, log_start_offset or 0)
        self._leader_epoch = 0
        self._timestamp = -1
        self._is_compacted = plan.is_compacted

    def run(self) -> None:
        self._plan.start_offset = self._next_offset
        self._note_lost_start()
        for index, (base_offset, path) in enumerate(self._paths):
            if base_offset > self._next_offset:
                self._cover_gap(base_offset)
            following = self._paths[index + 1][0] if index + 1 < len(self._paths) else None
            self._walk_segment(path, base_offset, following)
        plan = self._plan
        plan.segments = [segment for segment in plan.segments if segment.path not in plan.taken_out]
        if self._next_offset < self._flushed_offset and plan.segments:
            self._lose_end(plan.segments[-1])
        plan.end_offset = self._next_offset
        if not plan.segments:
            path = plan.directory / f"{self._next_offset:020d}{LOG_SUFFIX}"
            plan.segments.append(SegmentPlan(path, self._next_offset, 0))
            plan.actions.append(Action(path, "create", "there is no log file; the log starts empty"))

    def _note_lost_start(self) -> None:
        start = self._log_start_offset
        if start is not None and start < self._next_offset:
            path = self._plan.directory / f"{start:020d}{LOG_SUFFIX}"
            what = f"let the log begin with offset {self._next_offset}"
            last = self._next_offset - 1 if self._is_end_known or self._paths else UNKNOWN
            reason = "the log files before that are not there"
            self._plan.actions.append(Action(path, what, reason, first_lost_offset=start, last_lost_offset=last))

    def _lose_end(self, segment: SegmentPlan) -> None:
        if self._is_end_known:
            self._lose(segment, UNKNOWN, 0, "offsets that had been flushed are missing", self._flushed_offset)
            return
        first = self._next_offset
        self._lose(segment, UNKNOWN, 0, "the next log file is missing", self._flushed_offset)
        # How far it went is not known, only how far at least.
        self._plan.actions[-1] = replace(self._plan.actions[-1], first_lost_offset=first, last_lost_offset=UNKNOWN)

    def _cover_gap(self, next_base_offset: int) -> None:
        plan = self._plan
        if self._is_compacted or not plan.segments:
            self._next_offset = next_base_offset
            return
        before = plan.segments[-1]
        reason = f"the file ends with offset {self._next_offset - 1}, the next one starts with {next_base_offset}"
        self._lose(before, before.size_bytes, 0, reason, next_base_offset)

    def _walk_segment(self, path: Path, base_offset: int, following: int | None) -> None:
        size_bytes = path.stat().st_size
        segment = SegmentPlan(path, base_offset, size_bytes)
        self._plan.segments.append(segment)
        with _mapped(path, size_bytes) as (mapped, view):
            position = 0
            while position < size_bytes:
                header = self._batch_at(segment, view, position, following)
                if header is not None:
                    self._keep(segment, position, header)
                    position += header.size_bytes
                    continue
                position = self._skip_damage(segment, mapped, view, position, following)
        if size_bytes and not segment.pieces and following is not None:
            # Without a batch it only stands in the way of those around it.
            self._plan.taken_out.append(path)

    def _batch_at(
        self, segment: SegmentPlan, view: memoryview, position: int, following: int | None
    ) -> BatchHeader | None:
        """The sound batch at a position, its base offset corrected if the batches around it show what it was."""
        expected = self._next_offset
        try:
            header = parse_header(view, position)
            check_crc(view, header, position)
        except CorruptBatchError:
            return None
        if header.base_offset == expected or (header.base_offset > expected and self._is_compacted):
            return header
        behind = _base_offset_at(view, position + header.size_bytes)
        behind = following if behind is None else behind
        if behind == expected + header.last_offset_delta + 1 and behind != header.next_offset:
            end = position + header.size_bytes
            segment.pieces.append(Moved(position, end, expected))
            reason = f"the batch says offset {header.base_offset} between {expected - 1} and {behind}"
            self._plan.actions.append(Action(segment.path, f"write offset {expected}", reason, position))
            return header._replace(base_offset=expected)
        is_within = expected <= header.base_offset and header.last_offset <= segment.base_offset + RELATIVE_OFFSET_MAX
        if not is_within or (following is not None and header.last_offset >= following):
            return None
        self._lose(segment, position, 0, f"offset {header.base_offset} follows {expected - 1}", header.base_offset)
        return header

    def _keep(self, segment: SegmentPlan, position: int, header: BatchHeader) -> None:
        end = position + header.size_bytes
        last = segment.pieces[-1] if segment.pieces else None
        if isinstance(last, Kept) and last.end == position:
            segment.pieces[-1] = Kept(last.start, end)
        elif not (isinstance(last, Moved) and last.end == end):
            segment.pieces.append(Kept(position, end))
        segment.has_batches = True
        self._next_offset = header.next_offset
        self._timestamp = max(self._timestamp, header.max_timestamp)
        if header.partition_leader_epoch >= 0:
            self._leader_epoch = header.partition_leader_epoch
            epochs = self._plan.epochs
            if not epochs or header.partition_leader_epoch > epochs[-1][0]:
                epochs.append((header.partition_leader_epoch, header.base_offset))

    def _skip_damage(
        self, segment: SegmentPlan, mapped: mmap.mmap, view: memoryview, position: int, following: int | None
    ) -> int:
        """Remove everything from a damaged position to the next sound batch; returns the position of that batch."""
        found = self._behind(segment, mapped, view, position)
        end = len(view) if found is None else found
        reason = _reason(view, position, self._next_offset)
        if found is None and following is None and is_unwritten(view, position):
            action = Action(segment.path, "cut off", "only zeros follow", position, end - position)
            self._plan.actions.append(action)
            return end
        next_offset = following if found is None else _base_offset_at(view, found)
        self._lose(segment, position, end - position, reason, next_offset, _claimed(view, position, self._next_offset))
        return end

    def _behind(self, segment: SegmentPlan, mapped: mmap.mmap, view: memoryview, position: int) -> int | None:
        offset_max = segment.base_offset + RELATIVE_OFFSET_MAX
        claimed = _claimed(view, position, self._next_offset)
        if claimed is not None:
            # Only its contents are damaged: the next batch lies where its length says.
            behind = position + claimed.size_bytes
            if behind < len(view) and _is_sound(view, behind, claimed.next_offset, offset_max):
                return behind
        return next_good_batch(mapped, view, position, self._next_offset, offset_max)

    def _lose(
        self,
        segment: SegmentPlan,
        position: int,
        size_bytes: int,
        reason: str,
        next_offset: int | None,
        claimed: BatchHeader | None = None,
    ) -> None:
        """Record that offsets up to the next known one are lost; None: no known offset follows."""
        first = self._next_offset
        last = next_offset - 1 if next_offset is not None else UNKNOWN
        if last == UNKNOWN and claimed is not None:
            last = claimed.last_offset
        count = claimed.records_count if claimed is not None and claimed.last_offset == last else UNKNOWN
        is_lost = last >= first
        self._plan.actions.append(
            Action(
                segment.path,
                "take out" if size_bytes else "cover",
                reason,
                position,
                size_bytes,
                first if is_lost or last == UNKNOWN else UNKNOWN,
                last if is_lost else UNKNOWN,
                count,
            )
        )
        if next_offset is not None and next_offset > first:
            for start in range(first, next_offset, RELATIVE_OFFSET_MAX):
                end = min(next_offset - 1, start + RELATIVE_OFFSET_MAX - 1)
                segment.pieces.append(Covered(start, end, self._leader_epoch, self._timestamp))
            self._next_offset = next_offset


@contextmanager
def _mapped(path: Path, size_bytes: int) -> Iterator[tuple[mmap.mmap, memoryview]]:
    # An empty file can't be mapped; an anonymous page stands in, and nothing is read from it.
    with path.open("rb") as file:
        fd = file.fileno() if size_bytes else -1
        with (
            mmap.mmap(fd, max(size_bytes, 1), **({"access": mmap.ACCESS_READ} if size_bytes else {})) as mapped,
            memoryview(mapped) as view,
        ):
            yield mapped, view


def _is_sound(view: memoryview, position: int, offset_min: int, offset_max: int) -> bool:
    try:
        checked_header(view, position, offset_min, offset_max)
    except CorruptBatchError:
        return False
    return True


def _base_offset_at(view: memoryview, position: int) -> int | None:
    """The base offset of the sound batch at a position, if there is one."""
    try:
        header = parse_header(view, position)
        check_crc(view, header, position)
    except CorruptBatchError:
        return None
    return header.base_offset


def _claimed(view: memoryview, position: int, expected_offset: int) -> BatchHeader | None:
    """What a damaged batch says about itself, if its offset is right, so that its length and counts may be, too."""
    try:
        header = parse_header(view, position)
    except CorruptBatchError:
        return None
    return header if header.base_offset == expected_offset else None


def _reason(view: memoryview, position: int, expected_offset: int) -> str:
    try:
        checked_header(view, position, expected_offset, expected_offset + RELATIVE_OFFSET_MAX)
    except CorruptBatchError as error:
        return error.reason
    return f"the batch does not fit after offset {expected_offset - 1}"


# Other files


def _check_indexes(plan: PartitionPlan) -> None:
    logs = {segment.base_offset for segment in plan.segments}
    for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
        for path in sorted(plan.directory.glob("*" + suffix)):
            base_offset = offset_in_file_name(path.stem)
            if base_offset is None:
                continue
            if base_offset not in logs or not path.is_file():
                plan.taken_out.append(path)
                reason = "it is not a file" if base_offset in logs else "there is no log for it"
                plan.actions.append(Action(path, "set aside", reason))
    for segment in plan.segments:
        if segment.is_unchanged and segment.size_bytes:
            problem = next(_index_problems(segment.path), None)
            if problem is not None:
                segment.is_index_false = True
                plan.actions.append(Action(segment.path.with_suffix(INDEX_SUFFIX), "rewrite", problem))
        else:
            segment.is_index_false = True


def _index_problems(path: Path) -> Iterator[str]:
    for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
        if not path.with_suffix(suffix).exists():
            yield f"{path.with_suffix(suffix).name} is missing"
            return
        if not path.with_suffix(suffix).is_file():
            yield f"{path.with_suffix(suffix).name} is no file"
            return
    yield from (problem.message for problem in verify_indexes(path))


def _check_epochs(plan: PartitionPlan) -> None:
    path = plan.directory / LEADER_EPOCH_FILE
    reason = ""
    try:
        epochs = LeaderEpochs.load(plan.directory)
        if epochs is None:
            reason = "it is missing"
        elif not epochs_agree(epochs, plan.epochs, plan.end_offset, is_compacted=plan.is_compacted):
            reason = "it does not agree with the batches"
    except (CorruptCheckpointError, OSError) as error:
        reason = str(error)
    if reason and (plan.epochs or path.exists()):
        plan.are_epochs_false = True
        plan.actions.append(Action(path, "rewrite", reason))


def _check_other_files(plan: PartitionPlan) -> None:
    for path in sorted(plan.directory.glob("*" + SNAPSHOT_SUFFIX)):
        offset = offset_in_file_name(path.stem)
        if offset is None:
            continue
        try:
            decode_snapshot(path.read_bytes())
            reason = f"the log ends with offset {plan.end_offset - 1}" if offset > plan.end_offset else ""
        except (CorruptSnapshotError, OSError) as error:
            reason = str(error)
        if reason:
            plan.taken_out.append(path)
            plan.actions.append(Action(path, "set aside", reason))
    path = plan.directory / PARTITION_METADATA_FILE
    try:
        read_partition_metadata(plan.directory)
    except (CorruptCheckpointError, OSError) as error:
        plan.taken_out.append(path)
        plan.actions.append(Action(path, "set aside", f"{error}; the broker rebuilds it"))
