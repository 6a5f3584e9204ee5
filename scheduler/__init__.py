"""The scheduler: leader-elected, it watches, decides in a pure core, and binds."""
