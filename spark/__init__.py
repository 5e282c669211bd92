"""Reads the log on Spark: the same lines, the same checks, no running bus."""
