"""What the processes share, and the processes that are not the three big ones. Nothing here imports a process package."""
