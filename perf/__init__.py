"""Measurements: what the bus costs, and whether it still costs what it did."""
