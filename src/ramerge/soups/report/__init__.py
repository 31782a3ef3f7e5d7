"""How straight a run is, as a page."""
