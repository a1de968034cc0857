"""Pictures in PNG. Matplotlib takes a second to import, so that is done when one is drawn."""

from oktopk_training.files import atomic_write


def pyplot():
    """For files, whatever screen there is."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def write_picture(figure, path, dots_per_inch):
    with atomic_write(path, "wb") as file:
        figure.savefig(file, format="png", dpi=dots_per_inch)
