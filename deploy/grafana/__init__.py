"""Grafana dashboards, generated from code."""
