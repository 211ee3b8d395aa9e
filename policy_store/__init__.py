"""Versioned policies: what a router is told before its first request."""
