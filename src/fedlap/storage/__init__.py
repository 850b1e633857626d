"""Files on disk: read whole, written whole or not at all, locked by one process at a time."""
