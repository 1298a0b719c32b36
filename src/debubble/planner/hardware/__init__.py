"""GPUs, the links between them, and times of single kernels and collectives."""
