"""Engines that nobody tabulated: probes of a live worker, the cost table that fits them, and its upkeep from logs."""
