"""What every layer may use: the clock, ids, name checks, the mechanism of settings; nothing of the protocol."""
