"""Training between machines: a server and clients, each with its rows and private state on its own disk."""
