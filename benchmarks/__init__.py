"""Benchmarks of speed and scale, each against a system that a user would otherwise run."""
