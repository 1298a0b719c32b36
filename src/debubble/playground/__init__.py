"""A local page to try schedules on: move sliders, see timelines, numbers and trade-offs."""
