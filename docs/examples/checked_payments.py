"""Payments that a function of our own checks, row by row: what it refuses becomes a dead letter."""

from typing import Any

from pyspark.sql import DataFrame

from tidelog.pipeline import DeltaOutput, Json, Pipeline, TopicInput

RATES = {"EUR": 1.0, "USD": 0.9}


def in_euro(row: dict[str, Any]) -> dict[str, Any]:
    if row["amount"] <= 0:
        raise ValueError(f"an amount of {row['amount']}")
    return {"payment_id": row["payment_id"], "euro": row["amount"] * RATES[row["currency"]]}


def checked_payments(payments: DataFrame) -> DataFrame:
    return payments


pipeline = Pipeline(
    name="checked-payments",
    version=1,
    inputs={
        "payments": TopicInput(
            "payments",
            format=Json("payment_id long NOT NULL, amount double NOT NULL, currency string NOT NULL"),
            map=in_euro,
            map_schema="payment_id long, euro double",
        )
    },
    transform=checked_payments,
    outputs=[DeltaOutput("out/payments")],
    dead_letters="payments.refused",
)
