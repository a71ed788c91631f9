"""Revenue, orders and clicks of a shop, per minute and category."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from tidelog.pipeline import Json, Pipeline, TopicInput, TopicOutput

ORDERS = "order_id long NOT NULL, category string, amount_cents long NOT NULL, status string, at timestamp NOT NULL"
CLICKS = "click_id long NOT NULL, category string, page string, at timestamp NOT NULL"

MINUTE = "date_format(at, \"yyyy-MM-dd'T'HH:mm:00'Z'\") AS minute"


def revenue(orders: DataFrame, clicks: DataFrame) -> DataFrame:
    sold = orders.selectExpr(MINUTE, "category", "amount_cents", "1 AS orders", "0 AS clicks")
    seen = clicks.selectExpr(MINUTE, "category", "0 AS amount_cents", "0 AS orders", "1 AS clicks")
    slots = sold.unionByName(seen).groupBy("minute", "category")
    return slots.agg(
        f.sum("amount_cents").alias("revenue_cents"),
        f.sum("orders").alias("orders"),
        f.sum("clicks").alias("clicks"),
    )


pipeline = Pipeline(
    name="revenue",
    version=1,
    inputs={
        "orders": TopicInput("orders", format=Json(ORDERS)),
        "clicks": TopicInput("clicks", format=Json(CLICKS)),
    },
    transform=revenue,
    outputs=[TopicOutput("revenue", key=["minute", "category"], mode="upsert", format=Json())],
    output_mode="update",
)
