"""Clients in shards, one per process: the parts of a round that run there, and the engine that leads them."""
