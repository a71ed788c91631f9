"""The consumer: subscriptions, groups, fetching, offsets."""
