"""Comparisons of methods and settings over seeds: `compare`, `sweep`, and tuning before a comparison."""
