"""Fits the shipped cost files to public measurements; see `loadtest.engine.fit_costs`."""
