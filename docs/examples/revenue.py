"""Revenue of each minute and category: a window with a watermark, upserted into a compacted topic."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from tidelog.pipeline import Json, Pipeline, TopicInput, TopicOutput


def revenue(orders: DataFrame) -> DataFrame:
    minutes = orders.groupBy(sf.window("at", "1 minute").alias("window"), "category")
    totals = minutes.agg(sf.sum("price").alias("revenue"), sf.count("*").alias("orders"))
    return totals.select(sf.col("window.start").alias("minute"), "category", "revenue", "orders")


pipeline = Pipeline(
    name="revenue",
    version=1,
    inputs={
        "orders": TopicInput(
            "orders",
            format=Json("order_id long NOT NULL, category string, price double, at timestamp"),
            watermark=("at", "10 minutes"),
        )
    },
    transform=revenue,
    outputs=[TopicOutput("revenue", key=["minute", "category"], mode="upsert")],
    output_mode="update",
)
