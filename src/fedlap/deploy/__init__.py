"""Training between machines: a server and clients, each with its rows and its private state on its own disk."""
