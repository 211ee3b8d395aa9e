"""Training and judging of output-length prediction (Clairvoyant)."""
