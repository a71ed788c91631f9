"""How many clicks each visitor has made, ever: state of our own, kept by Spark for each key."""

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from tidelog.pipeline import Json, Pipeline, TopicInput, TopicOutput


class CountClicks(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._clicks = handle.getValueState("clicks", "clicks long")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803
        (clicks,) = self._clicks.get() or (0,)
        clicks += sum(len(frame) for frame in rows)
        self._clicks.update((clicks,))
        yield pd.DataFrame({"visitor": [key[0]], "clicks": [clicks]})

    def close(self) -> None:
        pass


def visits(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("visitor").transformWithStateInPandas(
        statefulProcessor=CountClicks(),
        outputStructType="visitor string, clicks long",
        outputMode="Update",
        timeMode="None",
    )


pipeline = Pipeline(
    name="visits",
    version=1,
    inputs={"clicks": TopicInput("clicks", format=Json("visitor string, page string"))},
    transform=visits,
    outputs=[TopicOutput("visits", key=["visitor"], mode="upsert")],
    output_mode="update",
)
