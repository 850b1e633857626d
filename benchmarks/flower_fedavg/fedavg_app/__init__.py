"""Flower's own FedAvg on a small network, as its quickstart has it."""
