"""What is asked about groups of any kind: their list, their description, their deletion.

What always holds: a group is deleted only while it has no members, and with all its offsets; the records that delete it
are committed before it is gone here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tidelog.coordinator.actions import Action, Answer, GroupRecord, Now
from tidelog.coordinator.appends import coordinator_error
from tidelog.coordinator.group import DEAD, EMPTY, GroupType
from tidelog.coordinator.offset_requests import OffsetRequests
from tidelog.coordinator.offsets import GroupOffsets, offset_tombstone
from tidelog.coordinator.shard_state import ShardState
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k15_describe_groups import DescribedGroup
from tidelog.protocol.messages.k16_list_groups import ListedGroup

_AT_ONCE_MAX: Final = 256
"""A group with more offsets than this is deleted in steps."""


class GroupRequests:
    """Lists, descriptions and deletions in one shard."""

    def __init__(self, state: ShardState, offsets: OffsetRequests) -> None:
        self._state = state
        self._offsets = offsets

    def list_groups(self, states: Sequence[str], types: Sequence[str]) -> list[ListedGroup]:
        """The groups in these states and of these kinds, whatever the case of their letters; none given is all."""
        wanted_states = {state.lower() for state in states}
        wanted_types = {kind.lower() for kind in types}
        listed = []
        for group_id in self._state.group_ids():
            row = self._row(group_id)
            if wanted_states and row.group_state.lower() not in wanted_states:
                continue
            if wanted_types and row.group_type.lower() not in wanted_types:
                continue
            listed.append(row)
        return listed

    def _row(self, group_id: str) -> ListedGroup:
        group = self._state.groups.get(group_id)
        if group is None:
            return ListedGroup(group_id=group_id, group_state=EMPTY, group_type=GroupType.CLASSIC.value)
        return ListedGroup(
            group_id=group_id,
            protocol_type=group.protocol_type,
            group_state=group.state,
            group_type=group.type.value,
        )

    def describe(self, group_id: str, *, include_history: bool) -> DescribedGroup:
        """A classic group; an id that none has is described as dead, with an error that older versions leave out."""
        group = self._state.groups.get(group_id)
        if group is not None and group.type is GroupType.CLASSIC:
            described = group.describe()
            if include_history:
                described.history = group.history.rows()
            return described
        if group is None and group_id in self._state.offsets:
            return DescribedGroup(group_id=group_id, group_state=EMPTY)
        reason = "Group %s not found." if group is None else "Group %s is not a classic group."
        return DescribedGroup(
            error_code=ErrorCode.GROUP_ID_NOT_FOUND,
            error_message=reason % group_id,
            group_id=group_id,
            group_state=DEAD,
        )

    def delete(self, group_id: str, exchange: int) -> list[Action]:
        """Delete a group; the answer is an ErrorCode."""
        error = self._check_delete(group_id)
        if error:
            return [Answer(exchange, error)]

        def finish(error: ErrorCode, now: Now) -> list[Action]:
            if error:
                return [Answer(exchange, coordinator_error(error))]
            return [*self._forget(group_id), Answer(exchange, ErrorCode.NONE)]

        offsets, group = self._state.offsets.get(group_id), self._state.groups.get(group_id)
        group_records = () if group is None else group.tombstones()
        if offsets is not None and offsets.count_max > _AT_ONCE_MAX:
            return [self._offsets.delete_all(group_id, group_records, finish)]
        tombstones = [*_tombstones(group_id, offsets or GroupOffsets()), *group_records]
        if not tombstones:
            # All its offsets were deleted before, so the log holds nothing of the group any more.
            return [*self._forget(group_id), Answer(exchange, ErrorCode.NONE)]
        return self._state.appends.start_all(tombstones, finish)

    def _check_delete(self, group_id: str) -> ErrorCode:
        if not self._state.is_known(group_id):
            return ErrorCode.GROUP_ID_NOT_FOUND
        if not self._state.may_remove_offsets(group_id):
            # It would take back a commit that is about to be answered.
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        group = self._state.groups.get(group_id)
        return ErrorCode.NONE if group is None else group.check_delete()

    def _forget(self, group_id: str) -> list[Action]:
        """The group's tombstones are committed."""
        self._state.drop_offsets(group_id)
        group = self._state.drop_group(group_id)
        return [] if group is None else group.on_deleted()


def _tombstones(group_id: str, offsets: GroupOffsets) -> list[GroupRecord]:
    """The records that delete the offsets of a group; they come first, so that a crash leaves a group to delete."""
    # What a transaction would commit later belongs to the group that is deleted now, too.
    names = {*offsets.partitions(), *offsets.pending_partitions()}
    return [offset_tombstone(group_id, topic, partition) for topic, partition in sorted(names)]
