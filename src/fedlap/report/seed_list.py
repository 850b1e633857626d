"""Seeds as text."""

from collections.abc import Sequence


def format_seeds(seeds: Sequence[int]) -> str:
    """Return a short list of seeds: "seed 3" or "seeds 0-4,7"."""
    ranges: list[list[int]] = []
    for seed in seeds:
        if ranges and seed == ranges[-1][-1] + 1:
            ranges[-1].append(seed)
        else:
            ranges.append([seed])
    pieces = [f"{part[0]}-{part[-1]}" if len(part) > 2 else ",".join(map(str, part)) for part in ranges]
    return f"seed{'s' if len(seeds) > 1 else ''} {','.join(pieces)}"
