"""Long curves: fewer points that look the same, and means. A point is (x, y); where y is None, the curve has a gap."""

MOST_POINTS = 1000


def thin(points, most=MOST_POINTS):
    """At most `most` of the points: first, last, and the lowest and highest of each stretch between them."""
    if len(points) <= most:
        return points
    inner, stretches = points[1:-1], most // 2 - 1
    kept = [points[0]]
    for number in range(stretches):
        stretch = inner[len(inner) * number // stretches : len(inner) * (number + 1) // stretches]
        known = [place for place, (_, y) in enumerate(stretch) if y is not None]
        if known:
            lowest, highest = (of(known, key=lambda place: stretch[place][1]) for of in (min, max))
            kept += [stretch[place] for place in sorted({lowest, highest})]
        else:
            kept.append(stretch[0])
    return [*kept, points[-1]]


def running_mean(points, window):
    """Of the last `window` values that are known."""
    means, last = [], []
    for x, y in points:
        if y is not None:
            last.append(y)
        if len(last) > window:
            del last[0]
        means.append((x, sum(last) / len(last) if last else None))
    return means


def binned(rows, bins):
    """Rows of figures in so many stretches of almost one length: the mean of each column over what is known of it."""
    bins = min(bins, len(rows))
    means = []
    for number in range(bins):
        stretch = rows[len(rows) * number // bins : len(rows) * (number + 1) // bins]
        columns = ([value for value in column if value is not None] for column in zip(*stretch, strict=True))
        means.append([sum(known) / len(known) if known else None for known in columns])
    return means
