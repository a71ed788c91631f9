"""Batches that other implementations wrote and read: the Java client, kafka-python and aiokafka."""

from __future__ import annotations

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

from tidelog.records import (
    Compression,
    ControlRecordType,
    check_crc,
    decode_records,
    encode_batch,
    encode_control_batch,
    parse_control_record,
    parse_header,
)
from tidelog.records.kernel import RecordTuple

RECORDS: list[RecordTuple] = [
    (b"key", b"value", [], 1_700_000_000_000),
    (None, b"second value", [("hé", b"x"), ("hé", None), ("", b"")], 1_700_000_000_123),
    (b"", None, [], 1_699_999_999_000),
    (bytes(200), b"", [], 1_700_000_500_000),
]

# Written by MemoryRecordsBuilder of kafka-clients 4.3.1: RECORDS with base offset 7 and leader epoch 3; the
# transactional one with producer id 4000000000, epoch 5 and base sequence 2147483646; the markers at offset 11 with
# leader epoch 2, producer id 99, epoch 4, coordinator epoch 17.
JAVA = {
    "plain": bytes.fromhex(
        "00000000000000070000013c0000000302cd4a21720000000000030000018bcfe568000000018bcfed0920ffffffffffffff"
        "ffffffffffffff000000041c000000066b65790a76616c7565004000f6010201187365636f6e642076616c7565060668c3a9"
        "02780668c3a90100000e00cf0f04000100a20300c0843d069003000000000000000000000000000000000000000000000000"
        "0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
        "0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
        "0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
        "00000000000000000000000000000000000000000000000000000000"
    ),
    "transactional": bytes.fromhex(
        "00000000000000070000013c00000003026a10f41e0010000000030000018bcfe568000000018bcfed092000000000ee6b28"
        "0000057ffffffe000000041c000000066b65790a76616c7565004000f6010201187365636f6e642076616c7565060668c3a9"
        "02780668c3a90100000e00cf0f04000100a20300c0843d069003000000000000000000000000000000000000000000000000"
        "0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
        "0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
        "0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
        "00000000000000000000000000000000000000000000000000000000"
    ),
    "gzip": bytes.fromhex(
        "0000000000000007000000840000000302881ef90c0001000000030000018bcfe568000000018bcfed0920ffffffffffffff"
        "ffffffffffffff000000041f8b08000000000000ff9361606060cb4eade42a4bcc294d657060f8c6c8c428519c9a9c9f97a2"
        "00166363cb38bc92a90244323230f0319ce76761606458c4cc70a0c5966d0233c3b00100b75734db0b010000"
    ),
    "snappy": bytes.fromhex(
        "0000000000000007000000920000000302daf5834b0002000000030000018bcfe568000000018bcfed0920ffffffffffffff"
        "ffffffffffffff0000000482534e415050590000000001000000010000004d8b02701c000000066b65790a76616c75650040"
        "00f6010201187365636f6e6420051418060668c3a902780106500100000e00cf0f04000100a20300c0843d06900300fe0100"
        "fe0100fe01001501"
    ),
    "lz4": bytes.fromhex(
        "00000000000000070000008b000000030285f9b7860003000000030000018bcfe568000000018bcfed0920ffffffffffffff"
        "ffffffffffffff0000000404224d186040824b000000f10e1c000000066b65790a76616c7565004000f6010201187365636f"
        "6e6420140070060668c3a902780600ff060100000e00cf0f04000100a20300c0843d069003000100b1500000000000000000"
        "00"
    ),
    "zstd": bytes.fromhex(
        "0000000000000007000000850000000302b18b217a0004000000030000018bcfe568000000018bcfed0920ffffffffffffff"
        "ffffffffffffff0000000428b52ffd0058440200d4031c000000066b65790a76616c7565004000f6010201187365636f6e64"
        "20060668c3a902780668c3a90100000e00cf0f04000100a20300c0843d06900300020030e2e875ed7402010000"
    ),
    "commit": bytes.fromhex(
        "000000000000000b000000420000000202e8cd4da30030000000000000018bcfe568000000018bcfe5680000000000000000"
        "630004ffffffff000000012000000008000000010c00000000001100"
    ),
    "abort": bytes.fromhex(
        "000000000000000b0000004200000002021cf39beb0030000000000000018bcfe568000000018bcfe5680000000000000000"
        "630004ffffffff000000012000000008000000000c00000000001100"
    ),
}


def expected(base_offset: int) -> list[tuple[object, ...]]:
    return [
        (base_offset + index, timestamp, key, value, tuple(headers))
        for index, (key, value, headers, timestamp) in enumerate(RECORDS)
    ]


def decoded(data: bytes | bytearray) -> list[tuple[object, ...]]:
    check_crc(data, parse_header(data))
    return [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in decode_records(data)]


@pytest.mark.usefixtures("twin")
def test_uncompressed_batch_is_what_the_java_client_writes() -> None:
    assert encode_batch(RECORDS, base_offset=7, leader_epoch=3) == JAVA["plain"]


@pytest.mark.usefixtures("twin")
def test_transactional_batch_is_what_the_java_client_writes() -> None:
    data = encode_batch(
        RECORDS,
        base_offset=7,
        leader_epoch=3,
        producer_id=4_000_000_000,
        producer_epoch=5,
        base_sequence=2_147_483_646,
        is_transactional=True,
    )
    assert data == JAVA["transactional"]
    assert parse_header(data).last_sequence == 1


@pytest.mark.usefixtures("twin")
@pytest.mark.parametrize("name", ["plain", "transactional", "gzip", "snappy", "lz4", "zstd"])
def test_batches_of_the_java_client_are_read(name: str) -> None:
    assert decoded(JAVA[name]) == expected(7)


@pytest.mark.parametrize("control_type", list(ControlRecordType))
def test_markers_are_what_the_java_broker_writes(control_type: ControlRecordType) -> None:
    data = encode_control_batch(
        control_type,
        producer_id=99,
        producer_epoch=4,
        coordinator_epoch=17,
        timestamp_ms=1_700_000_000_000,
        base_offset=11,
        leader_epoch=2,
    )
    assert data == JAVA[control_type.name.lower()]
    assert parse_control_record(decode_records(data)[0]).type is control_type


def kafka_python_batch(compression: Compression) -> bytes:
    builder = KafkaPythonBuilder(2, int(compression), False, -1, -1, -1, 1_000_000)
    for offset, (key, value, headers, timestamp) in enumerate(RECORDS):
        builder.append(offset, timestamp, key, value, list(headers))
    return bytes(builder.build())


def aiokafka_batch(compression: Compression) -> bytes:
    builder = AiokafkaBuilder(2, int(compression), 0, -1, -1, -1, 1_000_000)
    for offset, (key, value, headers, timestamp) in enumerate(RECORDS):
        builder.append(offset, timestamp, key, value, list(headers))
    return bytes(builder.build())


def without_leader_epoch(data: bytes | bytearray) -> bytes:
    """The clients differ in the leader epoch that they leave for the broker to fill; the CRC does not cover it."""
    return bytes(data[:12] + data[16:])


def test_uncompressed_batch_is_what_kafka_python_and_aiokafka_write() -> None:
    ours = without_leader_epoch(encode_batch(RECORDS))
    assert without_leader_epoch(kafka_python_batch(Compression.NONE)) == ours
    assert without_leader_epoch(aiokafka_batch(Compression.NONE)) == ours


@pytest.mark.usefixtures("twin")
@pytest.mark.parametrize("compression", [Compression.NONE, Compression.GZIP])
def test_batches_of_kafka_python_are_read(compression: Compression) -> None:
    assert decoded(kafka_python_batch(compression)) == expected(0)


@pytest.mark.usefixtures("twin")
@pytest.mark.parametrize("compression", list(Compression))
def test_batches_of_aiokafka_are_read(compression: Compression) -> None:
    assert decoded(aiokafka_batch(compression)) == expected(0)


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.GZIP])
def test_kafka_python_reads_ours(compression: Compression) -> None:
    batch = KafkaPythonBatch(bytes(encode_batch(RECORDS, base_offset=5, compression=compression)))
    assert batch.validate_crc()
    assert [(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in batch] == expected(5)


@pytest.mark.parametrize("compression", list(Compression))
def test_aiokafka_reads_ours(compression: Compression) -> None:
    batch = AiokafkaBatch(bytes(encode_batch(RECORDS, base_offset=5, compression=compression)))
    assert batch.validate_crc()
    assert [(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in batch] == expected(5)
