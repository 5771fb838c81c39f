"""Security of remote devices: addresses, TLS, access tokens, limits, and a tunnel for clients without TLS."""
