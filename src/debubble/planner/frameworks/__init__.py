"""Frameworks that run plans: what they refuse, and the flags that make them run one."""
