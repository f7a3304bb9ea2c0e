"""What is asked of paired runs."""

import math


def lower_bound(ratios):
    """The lower bound of the median with 95% confidence; None for too few."""
    n, ordered = len(ratios), sorted(ratios)
    below, k = 0.0, 0
    while k < n and below + math.comb(n, k) / 2**n <= 0.05:
        below += math.comb(n, k) / 2**n
        k += 1
    return ordered[k - 1] if k > 0 else None
