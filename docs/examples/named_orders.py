"""Orders with the name of their customer: a stream joined with a compacted topic as a table."""

from pyspark.sql import DataFrame

from tidelog.pipeline import Json, Pipeline, SqliteOutput, TableInput, TopicInput


def named_orders(orders: DataFrame, customers: DataFrame) -> DataFrame:
    return orders.join(customers, "customer_id", "left")


pipeline = Pipeline(
    name="named-orders",
    version=1,
    inputs={
        "orders": TopicInput("orders", format=Json("order_id long, customer_id long, price double")),
        "customers": TableInput("customers", format=Json("customer_id long, name string"), refresh="5 seconds"),
    },
    transform=named_orders,
    outputs=[SqliteOutput("out/shop.db", "named_orders", key=["order_id"])],
)
