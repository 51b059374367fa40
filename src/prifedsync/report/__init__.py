"""All figures are drawn in this room. It never imports torch."""
