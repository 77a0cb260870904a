"""Nights of an experiment: run, judged, published, and searched for the commit of a regression."""
