"""The producer: the way of a record from `send` to the broker's answer.

A record passes, in this order: `interceptors`, serializers, `partitioners`, the `accumulator` with its `buffer_pool`,
the `sender`, and a connection of `client.network`. `producer` and `async_producer` are what people use; both run
`core`, the one on a thread of its own, the other in the user's event loop.
"""
