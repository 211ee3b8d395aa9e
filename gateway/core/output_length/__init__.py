"""How long an answer will be: Clairvoyant's features and model, for the gateway, the simulator and training alike."""
