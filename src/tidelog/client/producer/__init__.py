"""The producer: the path of a record from `send` to the broker's response.

A record passes, in this order: `interceptors`, serializers, `partitioners`, the `accumulator` with its `buffer_pool`,
the `sender`, and a connection of `client.network`. `producer` and `async_producer` are the public classes; both run
`core`, the former in a background thread, the latter on the user's event loop.
"""
