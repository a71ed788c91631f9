"""A query from one topic to another as a process of its own, which is killed and started again by the test.

It restarts its query when that fails, as whoever looks after it would, until the file `stop` is there.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from killing_source import FAULTS_OPTION, KillingSource


def main(settings: dict[str, str]) -> None:
    directory = Path(settings["directory"])
    builder = SparkSession.builder.master(settings["master"]).appName("killed query")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "3",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.executorEnv.PYTHONPATH": str(Path(__file__).parent),
        "spark.deploy.maxExecutorRetries": "-1",
        "spark.task.maxFailures": "20",
        "spark.local.dir": str(directory / "local"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        # A loser of speculation is a kill point of its own.
        "spark.speculation": "true",
        "spark.speculation.interval": "50ms",
        "spark.speculation.quantile": "0.3",
        "spark.speculation.multiplier": "1.1",
        "spark.sql.streaming.checkpointFileManagerClass": (
            "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
        ),
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.dataSource.register(KillingSource)
    spark.sparkContext.setLogLevel("ERROR")
    while not (directory / "stop").exists():
        rows = (
            spark.readStream.format("tidelog")
            .option("kafka.bootstrap.servers", settings["bootstrap"])
            .option("subscribe", settings["source"])
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", "200")
            .load()
        )
        query = (
            rows.select("key", "value")
            .repartition(3)
            .writeStream.format("tidelog")
            .option("kafka.bootstrap.servers", settings["bootstrap"])
            .option("kafka.default.api.timeout.ms", "30000")
            .option("topic", settings["target"])
            .option(FAULTS_OPTION, settings["faults"])
            .option("checkpointLocation", str(directory / "checkpoint"))
            .start()
        )
        try:
            while not query.awaitTermination(1) and not (directory / "stop").exists():
                pass
        except StreamingQueryException as error:
            print(f"{time.time():.2f} the query failed: {str(error)[:300]!r}", flush=True)
        query.stop()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
