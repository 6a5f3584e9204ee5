"""What every process shares: settings, transport, servers and channels, telemetry, logging, the event loop, health,
shutdown. No knowledge of pods or nodes.
"""
