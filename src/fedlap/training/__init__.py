"""Training: rounds, engines, schedules, tuning and results."""
