"""What proves the bus, and may prove yours: a simulated file system, crash states, and a conformance suite."""
