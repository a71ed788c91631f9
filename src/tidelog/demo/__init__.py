"""The demo's story: a shop's events, what must come of them, and the chapters that show it."""
