"""The synchronous client: connections, cluster metadata, admin calls, producing, and consuming by assignment.

What always holds: it speaks only versions that both sides know, so it works with Tidelog and with Apache Kafka; every
wait has a time limit; every failure is a `ClientError` whose text is meant for a person. Only `table` starts
a thread.
"""
