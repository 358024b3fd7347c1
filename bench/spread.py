"""How far measurements of the same thing differ, and which ratios that leaves something to say about."""

import statistics


def ratio(ours, theirs):
    """Returns the ratio of the medians, and the lowest and highest ratio of two samples taken in the same round."""
    by_round = [one / other for one, other in zip(ours, theirs)]
    return statistics.median(ours) / statistics.median(theirs), min(by_round), max(by_round)


def refused(low, high):
    """Returns whether the ratios of single rounds lie on both sides of 1: then there is no telling which side is ahead."""
    return low < 1 < high


def text(median, low, high):
    """Returns a ratio as text; only its range if it is refused."""
    if refused(low, high):
        return f"no ratio: its rounds say {low:.2f} to {high:.2f} x"
    return f"{median:.2f} x ({low:.2f} to {high:.2f})"


def beside(ours, theirs):
    """Returns the ratio of two lists of samples, one of each round, as text."""
    return text(*ratio(ours, theirs))


def noise(samples):
    """Returns the difference of the highest and the lowest sample, as a share of the median."""
    return (max(samples) - min(samples)) / statistics.median(samples)
