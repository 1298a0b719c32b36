"""The data of a step: microbatches, targets, losses, and the trees of tensors between stages."""
