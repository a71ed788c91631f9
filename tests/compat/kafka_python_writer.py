"""Writes numbered records with kafka-python, as NumberedWriter does with the Java client.

In a process of its own, because the library leaves sockets open whose brokers are gone.
"""

from __future__ import annotations

import json
import sys
import threading
from functools import partial

import kafka


def main(bootstrap: str, topic: str) -> None:
    is_over = threading.Event()
    threading.Thread(target=wait_for_end, args=(is_over,), daemon=True).start()
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, acks="all", enable_idempotence=True)
    number = 0
    while not is_over.wait(0.002):
        future = producer.send(topic, b"%d" % number, key=b"%d" % (number % 97))
        future.add_callback(partial(tell, number, None))
        future.add_errback(partial(tell, number))
        number += 1
    producer.flush()
    producer.close()


def wait_for_end(is_over: threading.Event) -> None:
    sys.stdin.read()
    is_over.set()


def tell(number: int, error: object, metadata: object = None) -> None:
    print(number if error is None else f"failed: {number}: {error}", flush=True)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
