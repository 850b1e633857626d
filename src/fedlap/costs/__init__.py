"""The cost of a training before it runs: memory, bytes and seconds, from rates measured on this machine."""
