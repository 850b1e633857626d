"""FedU, and every other method of fedlap with a server, as a Flower app."""
