"""One module for every kind of file in which a run leaves its times."""
