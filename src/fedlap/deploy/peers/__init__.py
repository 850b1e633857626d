"""Training between peers: every client is a process that talks to its neighbours only, without a server."""
