"""Problems as constraint programs for OR-Tools CP-SAT."""
