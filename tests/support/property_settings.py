"""Settings of Hypothesis: the same examples in every run, and no deadline."""

from hypothesis import settings

short_law = settings(max_examples=40, deadline=None, derandomize=True)
law = settings(max_examples=50, deadline=None, derandomize=True)
long_law = settings(max_examples=60, deadline=None, derandomize=True)
