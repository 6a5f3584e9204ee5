"""One process that plays thousands of machines: it registers, heartbeats, admits, runs and finishes pods."""
