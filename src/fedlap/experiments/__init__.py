"""Described runs and their folders: experiments, checkpoints, resuming."""
