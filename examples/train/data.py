"""Text that every Python has, in batches: the language reference, one token per byte."""

from pydoc_data.topics import topics

import torch

TEXT = "\n\n".join(topics[name] for name in sorted(topics)).encode()


def batch(step, rows, tokens, device="cpu"):
    """Tokens of some random places of the text, and those that come next."""
    text = torch.frombuffer(bytearray(TEXT), dtype=torch.uint8).long()
    source = torch.Generator().manual_seed(step)
    starts = torch.randint(len(text) - tokens - 1, (rows,), generator=source)
    window = text[starts[:, None] + torch.arange(tokens + 1)].to(device)
    return window[:, :-1], window[:, 1:]
