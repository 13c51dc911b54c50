"""The reference runtime: agents that hand a conversation to one another."""
