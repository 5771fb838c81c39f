"""Monitoring of servers: metrics for Prometheus, gRPC's health service, and a log of connections."""
