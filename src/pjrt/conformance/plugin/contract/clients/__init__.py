"""The requirements of clients, their devices, memories and topologies."""
