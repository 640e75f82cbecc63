"""The messages between agents, hubs and dashboards."""
