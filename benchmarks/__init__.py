"""Speed and scale, each against something that a user would otherwise run."""
