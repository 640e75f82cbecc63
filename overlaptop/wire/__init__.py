"""What agents, hubs and dashboards say to each other."""
