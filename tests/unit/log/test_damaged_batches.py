"""Every kind of damaged batch is refused with its code, and what is taken can be read to the end."""

from __future__ import annotations

import pytest

from damaged_batches import Damage, all_kinds
from tidelog.log import LogConfig
from tidelog.log.validation import LongCheckError, takes_long, validate_batch
from tidelog.protocol import KafkaError
from tidelog.records import check_crc, decode_records

NOW_MS = 1_700_000_000_000
KINDS = all_kinds()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_each_kind(kind: Damage) -> None:
    batch = memoryview(bytearray(kind.encode(NOW_MS)))
    before = bytes(batch)
    if kind.code:
        with pytest.raises(KafkaError) as refused:
            validate_batch(batch, LogConfig(), NOW_MS, on_loop=True)
        assert refused.value.code is kind.code
        assert refused.value.message
        assert bytes(batch) == before, "a refused batch must not be changed"
    else:
        records, header, _ = validate_batch(batch, LogConfig(), NOW_MS, on_loop=True)
        check_crc(records, header)
        read = decode_records(records)
        assert [record.offset for record in read] == list(range(header.records_count))
        assert header.max_timestamp == max(-1, *(record.timestamp for record in read))


def test_what_only_the_records_tell_is_not_looked_for_where_they_are_not_checked() -> None:
    config = LogConfig(tidelog_records_check="none")
    taken = 0
    for kind in KINDS:
        batch = memoryview(bytearray(kind.encode(NOW_MS)))
        if not takes_long(batch, config):
            try:
                validate_batch(batch, config, NOW_MS, on_loop=True)
            except KafkaError:
                continue
            except LongCheckError:
                pytest.fail(f"{kind.name} was opened")
            taken += 1
    assert taken > len(KINDS) // 2
