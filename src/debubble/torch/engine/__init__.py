"""The engine of debubble: programs of actions, stages, transfers, and the times of actions."""
