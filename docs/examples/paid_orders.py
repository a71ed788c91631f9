"""Orders with the payment that came for them within an hour: two streams joined, each with a watermark."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from tidelog.pipeline import Json, ParquetOutput, Pipeline, TopicInput


def paid_orders(orders: DataFrame, payments: DataFrame) -> DataFrame:
    same_order = sf.col("orders.order_id") == sf.col("payments.order_id")
    in_time = sf.col("paid_at").between(sf.col("at"), sf.col("at") + sf.expr("INTERVAL 1 HOUR"))
    joined = orders.alias("orders").join(payments.alias("payments"), same_order & in_time)
    return joined.select("orders.order_id", "at", "price", "paid_at", "amount")


pipeline = Pipeline(
    name="paid-orders",
    version=1,
    inputs={
        "orders": TopicInput(
            "orders", format=Json("order_id long, price double, at timestamp"), watermark=("at", "10 minutes")
        ),
        "payments": TopicInput(
            "payments",
            format=Json("order_id long, amount double, paid_at timestamp"),
            watermark=("paid_at", "10 minutes"),
        ),
    },
    transform=paid_orders,
    outputs=[ParquetOutput("out/paid_orders")],
)
