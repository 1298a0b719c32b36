"""Event graphs: lower a schedule once, evaluate it for many costs."""
