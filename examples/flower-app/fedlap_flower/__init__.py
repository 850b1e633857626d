"""FedU, and every other method of fedlap with a server, as a Flower app.

Server and clients import this file: register own networks and methods here, as in `fl.MODELS["mine"] = …`.
"""
