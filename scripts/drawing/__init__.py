"""Plots and pages of plain SVG and HTML that need nothing else: no network, no library, no JavaScript to be read."""
